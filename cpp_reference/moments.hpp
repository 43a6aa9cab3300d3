#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "engine.hpp"
#include "mpi_session.hpp"
#include "network.hpp"
#include "selection.hpp"

/// Statistics of `count` samples: mean, sum of squared deviations (m2) and range of each feature, float64.
struct Moments {
    double count = 0;
    std::array<double, num_features> mean{};
    std::array<double, num_features> m2{};
    std::array<double, num_features> minimum{};
    std::array<double, num_features> maximum{};
};

/// Returns the moments of x (N,F) in two passes: first the mean, then the deviations from it.
template <typename Real>
Moments moments_of(const std::vector<Real>& x);

/// Returns the moments of the union of both sets: Chan, Golub, LeVeque (1983).
Moments merge(const Moments& a, const Moments& b);

/// Collective. Standard semantics: merges the moments of all virtual ranks in the fixed tree, on every rank.
/// parts: moments of the virtual ranks that this rank owns. The same bits for any number of ranks.
Moments all_reduce_moments(const MpiSession& mpi, const std::vector<Moments>& parts, std::int64_t num_virtual_ranks);

/// Returns mean and sqrt(m2 / count). A constant feature is only centred: its std is 1, and its index is added to
/// `constant`. It is detected by its range, which is exact; its m2 may be rounding noise instead of 0.
Normalization normalization_of(const Moments& moments, std::vector<std::size_t>& constant);

/// Collective. Reference semantics: adds the sums of this rank's n samples over the P ranks, and computes the
/// statistics from them and n P by the engine's `one_pass_moments`. Throws AgreedError with the name of a feature if
/// its std is not a positive number.
template <typename Real>
Normalization reference_normalization(const MpiSession& mpi, ColumnSums<Real> sums, std::size_t num_samples,
                                      OnePassMoments<Real> (*one_pass_moments)(const ColumnSums<Real>&, Real));
