#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "partition.hpp"

/// Standard semantics: the training samples, and the samples that each virtual rank uses in each step.
struct BatchOrder {
    std::int64_t num_virtual_ranks = 0;         // V
    std::int64_t num_steps = 0;                 // in `slots`; further steps repeat them from the first
    std::int64_t microbatch_size = 0;           // B / V rows
    std::vector<std::int64_t> training_points;  // (n_train) flat grid indices
    Range owned{0, 0};                          // the virtual ranks of this rank
    /// (step, owned virtual rank, row): index among the samples of that virtual rank, or -1 for a row of weight zero
    std::vector<std::int64_t> slots;
};

/// Reads training_index and batch_order, which Python has written; keeps the part of this rank's virtual ranks.
/// Throws UserError for an invalid shape or number.
BatchOrder read_batch_order(const std::string& path, const std::vector<std::int64_t>& selected_points,
                            std::optional<std::int64_t> num_virtual_ranks, int world_size, int rank);

/// Batch order without a file: every step uses all samples, in order; microbatches are padded to the same length.
BatchOrder full_batch_order(const std::vector<std::int64_t>& selected_points, std::int64_t num_virtual_ranks,
                            int world_size, int rank);
