#pragma once
#include <string>
#include <vector>

#include "batch_order.hpp"
#include "moments.hpp"
#include "mpi_session.hpp"
#include "options.hpp"
#include "selection.hpp"

/// The training samples of one rank.
template <typename Real>
struct Share {
    std::vector<Samples<Real>> samples;  // reference: one set; standard: one per virtual rank that it owns
    BatchOrder order;                    // standard only
};

/// Collective. Returns the selected points of all ranks: in reference semantics all must be valid, in standard
/// semantics invalid ones are dropped with a note. Throws AgreedError.
std::vector<std::int64_t> selected_points(const MpiSession& mpi, const Options& options, const History& history);

/// Collective. Returns this rank's part of the selected points. Throws AgreedError.
template <typename Real>
Share<Real> partition_points(const MpiSession& mpi, const Options& options, const History& history,
                             const std::vector<std::int64_t>& points);

/// Collective. Returns mean and standard deviation of the inputs as the semantics define them. Throws AgreedError.
template <typename Real>
Normalization share_normalization(const MpiSession& mpi, const Options& options, const Share<Real>& share);
