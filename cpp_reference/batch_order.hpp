#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "partition.hpp"

/// Standard: which training samples there are, and which of them each virtual rank takes in each step.
struct BatchOrder {
    std::int64_t num_virtual_ranks = 0;         // V
    std::int64_t num_steps = 0;                 // in `slots`; more steps start again from the first
    std::int64_t microbatch_size = 0;           // B / V rows
    std::vector<std::int64_t> training_points;  // (n_train) flat grid indices
    Range owned{0, 0};                          // the virtual ranks of this rank
    /// (step, owned virtual rank, row): place among that virtual rank's own samples, or -1 for a row of weight zero
    std::vector<std::int64_t> slots;
};

/// Reads training_index and batch_order as Python wrote them; keeps what this rank's virtual ranks need.
/// Throws UserError for a shape or a number that cannot be.
BatchOrder read_batch_order(const std::string& path, const std::vector<std::int64_t>& selected_points,
                            std::optional<std::int64_t> num_virtual_ranks, int world_size, int rank);

/// Without a file: every step takes all samples, in their order; microbatches are filled to one length.
BatchOrder full_batch_order(const std::vector<std::int64_t>& selected_points, std::int64_t num_virtual_ranks,
                            int world_size, int rank);
