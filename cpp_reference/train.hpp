#pragma once
#include <cstdint>
#include <vector>

#include "batch_order.hpp"
#include "engine.hpp"
#include "mpi_session.hpp"
#include "selection.hpp"

/// What training leaves behind for the trace.
struct TrainingRecord {
    struct Snapshot {
        std::int64_t step;             // counted from 1
        std::vector<double> gradient;  // (K) the applied one
        std::vector<double> weights;   // (K) after the step
    };
    std::vector<double> loss;          // (step) before each step: reference rank 0's own, standard over all samples
    std::vector<Snapshot> snapshots;   // of the steps in Options::trace_steps
    std::vector<double> step_seconds;  // (step)
};

/// Collective. Reference: `num_steps` full-batch steps on this rank's samples; gradients added per parameter by
/// MPI_Allreduce and divided by 7 P. num_steps and trace_steps must agree on all ranks.
template <typename Real>
TrainingRecord train_reference(const MpiSession& mpi, Engine<Real>& engine, const Samples<Real>& samples,
                               const Sizes& sizes, std::int64_t num_steps,
                               const std::vector<std::int64_t>& trace_steps);

/// Collective. Standard: one step for each entry of the batch order; partials added in the tree over virtual ranks.
/// samples: of each owned virtual rank.
template <typename Real>
TrainingRecord train_standard(const MpiSession& mpi, Engine<Real>& engine, const std::vector<Samples<Real>>& samples,
                              const BatchOrder& order, const Sizes& sizes, std::int64_t num_steps,
                              const std::vector<std::int64_t>& trace_steps);
