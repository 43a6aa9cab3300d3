#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

/// From start to before stop.
struct Range {
    std::int64_t start;
    std::int64_t stop;
    std::int64_t size() const { return stop - start; }
};

/// The run of `count` things that `rank` owns: floor(r * count / P) to before floor((r + 1) * count / P).
Range rank_range(std::int64_t count, int world_size, int rank);

/// Reference: the selected points whose flat index is r, r + P, r + 2P, ..., at most `limit` of them.
std::vector<std::int64_t> round_robin(const std::vector<std::int64_t>& points, int world_size, int rank,
                                      std::size_t limit = 400000);

/// In how many microbatches, each a virtual rank's, a batch is computed: the largest power of two that leaves each 8
/// rows, at most 128. The number of ranks does not enter.
std::int64_t microbatches_of(std::int64_t batch_size);

/// Standard: training sample number i belongs to virtual rank i mod V for ever. Returns v's grid points, in order.
std::vector<std::int64_t> points_of_virtual_rank(const std::vector<std::int64_t>& training_points,
                                                 std::int64_t num_virtual_ranks, std::int64_t v);
