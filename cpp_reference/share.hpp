#pragma once
#include <string>
#include <vector>

#include "batch_order.hpp"
#include "moments.hpp"
#include "mpi_session.hpp"
#include "options.hpp"
#include "selection.hpp"

/// What one rank trains on.
template <typename Real>
struct Share {
    std::vector<Samples<Real>> samples;  // reference: one set; standard: one for each virtual rank that it owns
    BatchOrder order;                    // standard only
};

/// Collective. The samples of every rank, after a check of the selection. Throws AgreedError.
std::vector<std::int64_t> selected_points(const MpiSession& mpi, const Options& options, const History& history);

/// Collective. This rank's part of the selected points. Throws AgreedError.
template <typename Real>
Share<Real> partition_points(const MpiSession& mpi, const Options& options, const History& history,
                             const std::vector<std::int64_t>& points);

/// Collective. What the normaliser subtracts and divides by, in this semantics' way. Throws AgreedError.
template <typename Real>
Normalization share_normalization(const MpiSession& mpi, const Options& options, const Share<Real>& share);
