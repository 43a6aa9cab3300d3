#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

/// The half-open interval [start, stop).
struct Range {
    std::int64_t start;
    std::int64_t stop;
    std::int64_t size() const { return stop - start; }
};

/// Returns the part of `count` items that `rank` owns: [floor(r * count / P), floor((r + 1) * count / P)).
Range rank_range(std::int64_t count, int world_size, int rank);

/// Reference semantics: returns the selected points with flat index r, r + P, r + 2P, ..., at most `limit` of them.
std::vector<std::int64_t> round_robin(const std::vector<std::int64_t>& points, int world_size, int rank,
                                      std::size_t limit = 400000);

/// Returns the number of microbatches of a batch, one per virtual rank: the largest power of two, at most 128, that
/// leaves 8 rows in each. It does not depend on the number of ranks.
std::int64_t microbatches_of(std::int64_t batch_size);

/// Standard semantics: returns the grid points of virtual rank v, in order. Training sample i always belongs to virtual
/// rank i mod V.
std::vector<std::int64_t> points_of_virtual_rank(const std::vector<std::int64_t>& training_points,
                                                 std::int64_t num_virtual_ranks, std::int64_t v);
