#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "network.hpp"
#include "options.hpp"

/// Rows of one batch, in memory that belongs to the caller. B rows, F features.
template <typename Real>
struct Microbatch {
    std::size_t rows;
    const Real* x;       // (B,F), not normalised
    const Real* y;       // (B)
    const Real* weight;  // (B), 0 for padding; null in reference, where every row has weight 1
};

/// The network's output and Jacobian for N samples.
struct Prediction {
    std::vector<double> y;         // (N)
    std::vector<double> jacobian;  // (N,F): dy/dx in physical units
};

/// Sums over the samples, per feature, in the precision of Real and in torch::sum's order of addition.
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

// The functions that compute each number of a reference run. The torch engine must call the same function as Python, on
// the same shapes: a vendor's vector library may round differently from the standard library (on some CPUs its square
// root does), so that only the same call gives the same bits.
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
// In standard semantics the statistics are IEEE float64 in both programs: + - * / and a correctly rounded square root.

/// The arithmetic of one rank, without MPI. K parameters in one flat order (network.hpp).
template <typename Real>
class Engine {
  public:
    virtual ~Engine() = default;

    virtual void set_normalization(const Normalization& normalization) = 0;
    virtual std::vector<double> weights() const = 0;  // (K)

    /// Returns the mean squared error of the rows (reference); overwrites gradient (K).
    virtual Real mean_loss(const Microbatch<Real>& microbatch, Real* gradient) = 0;
    /// Returns the sum of the rows' weighted squared errors (standard); overwrites gradient (K).
    virtual Real summed_loss(const Microbatch<Real>& microbatch, Real* gradient) = 0;
    /// Takes one Adam step with this gradient (K), as libtorch (reference) or Python's torch (standard) computes it.
    virtual void adam_step(const Real* gradient) = 0;

    /// x (N,F).
    virtual std::vector<Real> forward(const std::vector<Real>& x) = 0;
    virtual Prediction predict(const std::vector<Real>& x) = 0;
    /// Writes the libtorch archive, and normalization.<name> in the same folder. Throws UserError.
    virtual void save_model(const std::string& path) = 0;
};

template <typename Real>
std::unique_ptr<Engine<Real>> make_plain_engine(const Weights& weights, const Options& options);

template <typename Real>
ColumnSums<Real> plain_column_sums(const std::vector<Real>& x);  // x (N,F)

/// Returns the statistics from `sums` over the N = num_samples samples of all ranks.
template <typename Real>
OnePassMoments<Real> plain_one_pass_moments(const ColumnSums<Real>& sums, Real num_samples);

/// Returns whether this program was built with libtorch. If not, the functions below throw UserError.
bool torch_engine_is_built();
/// Returns the version of libtorch, and the instruction set that its kernels use on this CPU.
std::string torch_build();

template <typename Real>
std::unique_ptr<Engine<Real>> make_torch_engine(const Weights& weights, const Options& options);

template <typename Real>
ColumnSums<Real> torch_column_sums(const std::vector<Real>& x);  // x (N,F)

template <typename Real>
OnePassMoments<Real> torch_one_pass_moments(const ColumnSums<Real>& sums, Real num_samples);

/// Contents of a model file and of normalization.<name> in the same folder, written by Python or by save_model.
/// read_model throws UserError.
struct Model {
    Weights weights;
    Normalization normalization;
};
Model read_model(const std::string& path);
