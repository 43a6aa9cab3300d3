#pragma once
#include <cstdint>
#include <vector>

#include "batch_order.hpp"
#include "engine.hpp"
#include "mpi_session.hpp"
#include "selection.hpp"

/// Numbers that the training records for the trace.
struct TrainingRecord {
    struct Snapshot {
        std::int64_t step;             // counted from 1
        std::vector<double> gradient;  // (K) as applied by the optimiser
        std::vector<double> weights;   // (K) after the step
    };
    std::vector<double> loss;          // (step) before each step; reference: of this rank, standard: of the batch
    std::vector<Snapshot> snapshots;   // of the steps in Options::trace_steps
    std::vector<double> step_seconds;  // (step)
};

/// Collective. Reference semantics: `num_steps` full-batch steps on this rank's samples; gradients are added per
/// parameter by MPI_Allreduce and divided by 7 P. num_steps and trace_steps must be the same on all ranks.
template <typename Real>
TrainingRecord train_reference(const MpiSession& mpi, Engine<Real>& engine, const Samples<Real>& samples,
                               const Sizes& sizes, std::int64_t num_steps,
                               const std::vector<std::int64_t>& trace_steps);

/// Collective. Standard semantics: `num_steps` steps over the batch order; the partial gradients of the virtual ranks
/// are added in the fixed tree. samples: those of each owned virtual rank.
template <typename Real>
TrainingRecord train_standard(const MpiSession& mpi, Engine<Real>& engine, const std::vector<Samples<Real>>& samples,
                              const BatchOrder& order, const Sizes& sizes, std::int64_t num_steps,
                              const std::vector<std::int64_t>& trace_steps);
