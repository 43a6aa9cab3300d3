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

/// Two passes over x (N,F): first the mean, then the deviations from it.
template <typename Real>
Moments moments_of(const std::vector<Real>& x);

/// Moments of both sets together: Chan, Golub, LeVeque (1983).
Moments merge(const Moments& a, const Moments& b);

/// Collective. Standard: the moments of every virtual rank, merged in the fixed tree on every rank.
/// parts: those of the virtual ranks that this rank owns. The same bits for any number of ranks.
Moments all_reduce_moments(const MpiSession& mpi, const std::vector<Moments>& parts, std::int64_t num_virtual_ranks);

/// mean and sqrt(m2 / count). A constant feature is centred only: std 1; its number goes into `constant`. Its range
/// tells it exactly; its m2 may come out as rounding noise.
Normalization normalization_of(const Moments& moments, std::vector<std::size_t>& constant);

/// Collective. Reference: the sums of this rank's n samples are added over the P ranks, and `one_pass_moments`, the
/// engine's, makes statistics of them and of n P. Throws AgreedError naming a feature whose std is not a positive
/// number.
template <typename Real>
Normalization reference_normalization(const MpiSession& mpi, ColumnSums<Real> sums, std::size_t num_samples,
                                      OnePassMoments<Real> (*one_pass_moments)(const ColumnSums<Real>&, Real));
