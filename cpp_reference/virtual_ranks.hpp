#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi_session.hpp"
#include "partition.hpp"

/// Number and offset of each rank's values, with `width` values per virtual rank.
struct OwnedCounts {
    std::vector<int> counts;  // (P)
    std::vector<int> starts;  // (P)
};
OwnedCounts owned_counts(std::int64_t num_virtual_ranks, int world_size, int width);

/// Adds the rows of partials (rows, width) pairwise, ((0,1),(2,3)), ..., into row 0. Overwrites the other rows.
template <typename Real>
void add_tree(Real* partials, std::size_t rows, std::size_t width) {
    for (std::size_t stride = 1; stride < rows; stride *= 2) {
        for (std::size_t v = 0; v + stride < rows; v += 2 * stride) {
            Real* into = partials + v * width;
            const Real* from = into + stride * width;
            for (std::size_t k = 0; k < width; ++k) into[k] += from[k];
        }
    }
}

/// V virtual ranks (a power of two) distributed over P ranks in contiguous ranges, and the fixed tree that adds their
/// partials. The tree does not depend on P, so the sum has the same bits for every P.
template <typename Real>
class VirtualRanks {
  public:
    /// width: number of values in the partial of one virtual rank.
    VirtualRanks(const MpiSession& mpi, std::int64_t num_virtual_ranks, std::size_t width)
        : mpi_(mpi),
          count_(num_virtual_ranks),
          owned_(rank_range(num_virtual_ranks, mpi.world_size(), mpi.rank())),
          is_even_(is_power_of_two(mpi.world_size()) && mpi.world_size() <= num_virtual_ranks),
          width_(width),
          layout_(owned_counts(num_virtual_ranks, mpi.world_size(), static_cast<int>(width))),
          partials_(static_cast<std::size_t>(num_virtual_ranks) * width),
          received_(width) {}

    std::int64_t count() const { return count_; }
    Range owned() const { return owned_; }

    /// Returns the memory for the partial (width) of virtual rank v, which this rank must own.
    Real* partial(std::int64_t v) { return partials_.data() + static_cast<std::size_t>(v) * width_; }

    /// Collective. Adds all V partials in the tree; returns the sum (width), the same bits on every rank.
    Real* all_reduce() { return is_even_ ? combine_subtrees() : gather_and_add(); }

  private:
    static bool is_power_of_two(int number) { return (number & (number - 1)) == 0; }

    /// Each rank owns an aligned range: it adds its own subtree, then recursive doubling adds the subtrees. Partners
    /// add the same two numbers in opposite order; addition is commutative, so both get the same bits.
    Real* combine_subtrees() {
        Real* sum = partial(owned_.start);
        add_tree(sum, static_cast<std::size_t>(owned_.size()), width_);
        const int count = static_cast<int>(width_);
        for (int distance = 1; distance < mpi_.world_size(); distance *= 2) {
            const int partner = mpi_.rank() ^ distance;
            MPI_Sendrecv(sum, count, mpi_type<Real>(), partner, 0, received_.data(), count, mpi_type<Real>(), partner,
                         0, mpi_.comm(), MPI_STATUS_IGNORE);
            for (std::size_t k = 0; k < width_; ++k) sum[k] += received_[k];
        }
        return sum;
    }

    /// For ranges of unequal length: every rank gathers all partials and adds the whole tree.
    Real* gather_and_add() {
        MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, partials_.data(), layout_.counts.data(),
                       layout_.starts.data(), mpi_type<Real>(), mpi_.comm());
        add_tree(partials_.data(), static_cast<std::size_t>(count_), width_);
        return partials_.data();
    }

    const MpiSession& mpi_;
    std::int64_t count_;
    Range owned_;
    bool is_even_;
    std::size_t width_;
    OwnedCounts layout_;
    std::vector<Real> partials_;  // (V, width)
    std::vector<Real> received_;  // (width)
};
