#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "network.hpp"
#include "options.hpp"

/// Rows of one batch. Borrowed memory. B rows, F features.
template <typename Real>
struct Microbatch {
    std::size_t rows;
    const Real* x;       // (B,F), not normalised
    const Real* y;       // (B)
    const Real* weight;  // (B), 0 for padding; null in reference, where every row counts
};

/// What the network makes of N samples.
struct Prediction {
    std::vector<double> y;         // (N)
    std::vector<double> jacobian;  // (N,F): dy/dx in physical units
};

/// Sums over the samples, per feature, in the precision of Real and in the order of torch::sum.
template <typename Real>
struct ColumnSums {
    std::vector<Real> x;          // (F)
    std::vector<Real> x_squared;  // (F)
};

/// One-pass statistics of reference semantics: mean = S1 / N, std = sqrt(S2 / N - mean^2), not clamped.
template <typename Real>
struct OnePassMoments {
    std::vector<Real> mean;  // (F)
    std::vector<Real> std;   // (F)
};

// Where each number of a reference run comes from. In the column `torch` it must be the function that Python calls, on
// the same shapes: a vendor's vector library may round otherwise than the standard library (the square root of some
// CPUs does), and then only the same call gives the same bits.
//
//   number                  Python                        torch engine                plain engine
//   column sums             torch.sum, torch.pow          torch::sum, torch::pow      loops in the order of torch::sum
//   mean and std            torch.sqrt, torch.pow on (F,) torch::sqrt, torch::pow     std::sqrt
//   sums over the ranks     MPI_Allreduce                 MPI_Allreduce               MPI_Allreduce
//   forward, loss, gradient torch                         libtorch                    loops
//   gradient / (7 P)        one IEEE division each        the same                    the same
//   Adam                    torch.sqrt, libtorch's order  torch::optim::Adam          std::sqrt (adam.hpp)
//   prediction, Jacobian    torch                         libtorch                    loops
//
// In standard semantics the statistics are IEEE float64 on both sides: + - * / and a correctly rounded square root.

/// The arithmetic of one rank: no MPI in here. K parameters in one flat order (network.hpp).
template <typename Real>
class Engine {
  public:
    virtual ~Engine() = default;

    virtual void set_normalization(const Normalization& normalization) = 0;
    virtual std::vector<double> weights() const = 0;  // (K)

    /// mse over the rows (reference). gradient (K) is overwritten. Returns the loss.
    virtual Real mean_loss(const Microbatch<Real>& microbatch, Real* gradient) = 0;
    /// Sum of the rows' weighted squared errors (standard). gradient (K) is overwritten. Returns that sum.
    virtual Real summed_loss(const Microbatch<Real>& microbatch, Real* gradient) = 0;
    /// One Adam step with this gradient (K), as libtorch computes it (reference) or Python's torch (standard).
    virtual void adam_step(const Real* gradient) = 0;

    /// x (N,F).
    virtual std::vector<Real> forward(const std::vector<Real>& x) = 0;
    virtual Prediction predict(const std::vector<Real>& x) = 0;
    /// Writes the libtorch archive and normalization.<name> beside it. Throws UserError.
    virtual void save_model(const std::string& path) = 0;
};

template <typename Real>
std::unique_ptr<Engine<Real>> make_plain_engine(const Weights& weights, const Options& options);

template <typename Real>
ColumnSums<Real> plain_column_sums(const std::vector<Real>& x);  // x (N,F)

/// sums over all ranks' N samples in, statistics out. num_samples: N.
template <typename Real>
OnePassMoments<Real> plain_one_pass_moments(const ColumnSums<Real>& sums, Real num_samples);

/// Whether this program was built with libtorch. Without it the functions below throw UserError.
bool torch_engine_is_built();
/// Version of libtorch, and the instruction sets that its own kernels take here.
std::string torch_build();

template <typename Real>
std::unique_ptr<Engine<Real>> make_torch_engine(const Weights& weights, const Options& options);

template <typename Real>
ColumnSums<Real> torch_column_sums(const std::vector<Real>& x);  // x (N,F)

template <typename Real>
OnePassMoments<Real> torch_one_pass_moments(const ColumnSums<Real>& sums, Real num_samples);

/// A model file and normalization.<name> beside it, written by Python or by save_model. Throws UserError.
struct Model {
    Weights weights;
    Normalization normalization;
};
Model read_model(const std::string& path);
