#include "partition.hpp"

Range rank_range(std::int64_t count, int world_size, int rank) {
    return {count * rank / world_size, count * (rank + 1) / world_size};
}

std::vector<std::int64_t> round_robin(const std::vector<std::int64_t>& points, int world_size, int rank,
                                      std::size_t limit) {
    std::vector<std::int64_t> mine;
    for (const std::int64_t point : points) {
        if (point % world_size == rank && mine.size() < limit) mine.push_back(point);
    }
    return mine;
}

std::int64_t microbatches_of(std::int64_t batch_size) {
    constexpr std::int64_t fewest_rows = 8, most = 128;
    std::int64_t count = 1;
    while (count < most && 2 * count * fewest_rows <= batch_size) count *= 2;
    return count;
}

std::vector<std::int64_t> points_of_virtual_rank(const std::vector<std::int64_t>& training_points,
                                                 std::int64_t num_virtual_ranks, std::int64_t v) {
    std::vector<std::int64_t> mine;
    for (auto i = static_cast<std::size_t>(v); i < training_points.size();
         i += static_cast<std::size_t>(num_virtual_ranks)) {
        mine.push_back(training_points[i]);
    }
    return mine;
}
