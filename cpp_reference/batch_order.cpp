#include "batch_order.hpp"

#include "errors.hpp"
#include "netcdf_file.hpp"

namespace {

/// Returns the flat grid indices of the training samples; training_index has ascending positions among the selected
/// points.
std::vector<std::int64_t> read_training_points(const NetcdfFile& file, const std::vector<std::int64_t>& selected) {
    std::vector<std::int64_t> points;
    std::int64_t previous = -1;
    for (const std::int64_t position : file.read_int64("training_index")) {
        if (position <= previous || position >= static_cast<std::int64_t>(selected.size())) {
            throw UserError(file.path() + ": training_index: " + std::to_string(position) + " after " +
                            std::to_string(previous) + "; allowed are ascending positions among the " +
                            std::to_string(selected.size()) + " selected, valid samples");
        }
        points.push_back(selected[static_cast<std::size_t>(position)]);
        previous = position;
    }
    if (points.empty()) throw UserError(file.path() + ": training_index: it is empty");
    return points;
}

/// Returns the index i / V of training sample i among the samples of virtual rank v = i mod V.
std::int64_t slot_of(std::int64_t i, std::int64_t v, const BatchOrder& order, const std::string& path) {
    if (i == -1) return -1;
    const auto num_samples = static_cast<std::int64_t>(order.training_points.size());
    if (i < -1 || i >= num_samples || i % order.num_virtual_ranks != v) {
        throw UserError(path + ": batch_order: sample " + std::to_string(i) + " for virtual rank " + std::to_string(v) +
                        "; allowed are -1 and numbers below " + std::to_string(num_samples) + " with remainder " +
                        std::to_string(v) + " when divided by " + std::to_string(order.num_virtual_ranks));
    }
    return i / order.num_virtual_ranks;
}

void check_num_virtual_ranks(std::int64_t found, std::optional<std::int64_t> asked, const std::string& path) {
    if (found < 1 || (found & (found - 1)) != 0) {
        throw UserError(path + ": batch_order: " + std::to_string(found) + " virtual ranks; allowed is a power of two");
    }
    if (asked && *asked != found) {
        throw UserError(path + ": batch_order: " + std::to_string(found) + " virtual ranks, but --virtual-ranks is " +
                        std::to_string(*asked));
    }
}

}  // namespace

BatchOrder read_batch_order(const std::string& path, const std::vector<std::int64_t>& selected_points,
                            std::optional<std::int64_t> num_virtual_ranks, int world_size, int rank) {
    const NetcdfFile file = NetcdfFile::open(path);
    const std::vector<std::size_t> shape = file.shape("batch_order");
    if (shape.size() != 3 || shape[0] < 1 || shape[2] < 1) {
        throw UserError(path +
                        ": variable batch_order: allowed shape is (step, virtual rank, microbatch), each at least 1");
    }
    BatchOrder order;
    order.num_steps = static_cast<std::int64_t>(shape[0]);
    order.num_virtual_ranks = static_cast<std::int64_t>(shape[1]);
    order.microbatch_size = static_cast<std::int64_t>(shape[2]);
    check_num_virtual_ranks(order.num_virtual_ranks, num_virtual_ranks, path);
    order.training_points = read_training_points(file, selected_points);
    order.owned = rank_range(order.num_virtual_ranks, world_size, rank);
    const auto first = static_cast<std::size_t>(order.owned.start),
               count = static_cast<std::size_t>(order.owned.size());
    order.slots = file.read_int64("batch_order", {0, first, 0}, {shape[0], count, shape[2]});
    for (std::size_t k = 0; k < order.slots.size(); ++k) {
        const std::int64_t v = order.owned.start + static_cast<std::int64_t>(k / shape[2] % count);
        order.slots[k] = slot_of(order.slots[k], v, order, path);
    }
    return order;
}

BatchOrder full_batch_order(const std::vector<std::int64_t>& selected_points, std::int64_t num_virtual_ranks,
                            int world_size, int rank) {
    if (selected_points.empty()) throw UserError("no valid sample is selected; see --pole and --clean-data");
    BatchOrder order;
    order.num_virtual_ranks = num_virtual_ranks;
    order.num_steps = 1;
    order.training_points = selected_points;
    const auto n = static_cast<std::int64_t>(selected_points.size());
    order.microbatch_size = (n + num_virtual_ranks - 1) / num_virtual_ranks;
    order.owned = rank_range(num_virtual_ranks, world_size, rank);
    for (std::int64_t v = order.owned.start; v < order.owned.stop; ++v) {
        for (std::int64_t j = 0; j < order.microbatch_size; ++j) {
            order.slots.push_back(j * num_virtual_ranks + v < n ? j : -1);
        }
    }
    return order;
}
