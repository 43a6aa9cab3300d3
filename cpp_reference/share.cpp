#include "share.hpp"

#include <algorithm>
#include <iostream>

#include "engine.hpp"
#include "errors.hpp"

namespace {

void note(const MpiSession& mpi, const std::string& text) {
    if (mpi.is_root()) std::cerr << "mpitrain_reference: note: " << text << "\n";
}

/// Collective. Every rank keeps the same number of samples, that of the rank with the fewest; the rest is dropped.
template <typename Real>
Share<Real> reference_share(const MpiSession& mpi, const History& history, const std::vector<std::int64_t>& points) {
    std::vector<std::int64_t> mine = round_robin(points, mpi.world_size(), mpi.rank());
    mpi.together([&] {
        if (!mine.empty()) return;
        throw UserError("rank " + std::to_string(mpi.rank()) + " of " + std::to_string(mpi.world_size()) +
                        " has no sample among the " + std::to_string(points.size()) +
                        " selected; use fewer ranks, or --semantics standard");
    });
    auto kept = static_cast<std::int64_t>(mine.size());
    MPI_Allreduce(MPI_IN_PLACE, &kept, 1, MPI_INT64_T, MPI_MIN, mpi.comm());
    mine.resize(static_cast<std::size_t>(kept));
    return {{take_samples<Real>(history, mine)}, {}};
}

template <typename Real>
Share<Real> standard_share(const MpiSession& mpi, const Options& options, const History& history,
                           const std::vector<std::int64_t>& points) {
    Share<Real> share;
    share.order = mpi.together([&] {
        if (options.batch_order.empty()) {
            return full_batch_order(
                points, options.virtual_ranks.value_or(microbatches_of(static_cast<std::int64_t>(points.size()))),
                mpi.world_size(), mpi.rank());
        }
        return read_batch_order(options.batch_order, points, options.virtual_ranks, mpi.world_size(), mpi.rank());
    });
    for (std::int64_t v = share.order.owned.start; v < share.order.owned.stop; ++v) {
        const auto mine = points_of_virtual_rank(share.order.training_points, share.order.num_virtual_ranks, v);
        share.samples.push_back(take_samples<Real>(history, mine));
    }
    return share;
}

template <typename Real>
Normalization standard_normalization(const MpiSession& mpi, const Share<Real>& share) {
    std::vector<Moments> parts;
    for (const Samples<Real>& samples : share.samples) parts.push_back(moments_of(samples.x));
    const Moments all = all_reduce_moments(mpi, parts, share.order.num_virtual_ranks);
    std::vector<std::size_t> constant;
    const Normalization normalization = normalization_of(all, constant);
    for (const std::size_t f : constant)
        note(mpi, std::string(input_names[f]) + ": zero variance; centred, not scaled");
    return normalization;
}

}  // namespace

std::vector<std::int64_t> selected_points(const MpiSession& mpi, const Options& options, const History& history) {
    const std::vector<std::int64_t> points = select_points(history, options.pole, options.clean_data);
    if (options.semantics == Semantics::reference) {
        mpi.together([&] { check_valid(history, points); });
        return points;
    }
    std::vector<std::int64_t> valid = drop_invalid(history, points);
    if (valid.size() < points.size()) {
        note(mpi, std::to_string(points.size() - valid.size()) + " of " + std::to_string(points.size()) +
                      " selected samples dropped: NaN or fill values");
    }
    return valid;
}

template <typename Real>
Share<Real> partition_points(const MpiSession& mpi, const Options& options, const History& history,
                             const std::vector<std::int64_t>& points) {
    if (options.semantics == Semantics::reference) return reference_share<Real>(mpi, history, points);
    return standard_share<Real>(mpi, options, history, points);
}

template <typename Real>
Normalization share_normalization(const MpiSession& mpi, const Options& options, const Share<Real>& share) {
    if (options.semantics == Semantics::standard) return standard_normalization(mpi, share);
    const Samples<Real>& mine = share.samples[0];
    const bool torch = options.engine == EngineKind::torch;
    return reference_normalization(mpi, torch ? torch_column_sums(mine.x) : plain_column_sums(mine.x), mine.size(),
                                   torch ? torch_one_pass_moments<Real> : plain_one_pass_moments<Real>);
}

template Share<float> partition_points(const MpiSession&, const Options&, const History&,
                                       const std::vector<std::int64_t>&);
template Share<double> partition_points(const MpiSession&, const Options&, const History&,
                                        const std::vector<std::int64_t>&);
template Normalization share_normalization(const MpiSession&, const Options&, const Share<float>&);
template Normalization share_normalization(const MpiSession&, const Options&, const Share<double>&);
