#include "virtual_ranks.hpp"

OwnedCounts owned_counts(std::int64_t num_virtual_ranks, int world_size, int width) {
    OwnedCounts owned;
    for (int rank = 0; rank < world_size; ++rank) {
        const Range range = rank_range(num_virtual_ranks, world_size, rank);
        owned.counts.push_back(static_cast<int>(range.size()) * width);
        owned.starts.push_back(static_cast<int>(range.start) * width);
    }
    return owned;
}
