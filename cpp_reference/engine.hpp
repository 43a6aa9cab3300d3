#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "network.hpp"
#include "options.hpp"

/// Rows of one batch. Borrowed memory. B rows, F features.
template <typename Real>
struct Slice {
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

/// The arithmetic of one rank: no MPI in here. K parameters in one flat order (network.hpp).
template <typename Real>
class Engine {
  public:
    virtual ~Engine() = default;

    virtual void set_normalization(const Normalization& normalization) = 0;
    virtual std::vector<double> weights() const = 0;  // (K)

    /// mse over the rows (reference). gradient (K) is overwritten. Returns the loss.
    virtual Real mean_loss(const Slice<Real>& slice, Real* gradient) = 0;
    /// Sum of the rows' weighted squared errors (standard). gradient (K) is overwritten. Returns that sum.
    virtual Real summed_loss(const Slice<Real>& slice, Real* gradient) = 0;
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

/// Whether this program was built with libtorch. Without it the functions below throw UserError.
bool torch_engine_is_built();

template <typename Real>
std::unique_ptr<Engine<Real>> make_torch_engine(const Weights& weights, const Options& options);

template <typename Real>
ColumnSums<Real> torch_column_sums(const std::vector<Real>& x);  // x (N,F)

/// A model file and normalization.<name> beside it, written by Python or by save_model. Throws UserError.
struct Model {
    Weights weights;
    Normalization normalization;
};
Model read_model(const std::string& path);
