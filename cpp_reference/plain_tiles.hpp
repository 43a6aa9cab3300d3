// Common base of the plain engines: loop over the samples, 64 rows at a time, optimiser, and activations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>
#include <vector>

#include "adam.hpp"
#include "engine.hpp"
#include "errors.hpp"

constexpr std::size_t tile_rows = 64;

template <typename Real>
Real sigmoid(Real z) {
    return 1 / (1 + std::exp(-z));
}

/// Replaces z by act(z) in place, and writes the slope. Activation::none changes neither: the caller must initialise
/// the slopes with 1.
template <typename Real>
void activate(Activation activation, Real* z, Real* slope, std::size_t count) {
    const auto each = [=](auto&& one) {
        for (std::size_t i = 0; i < count; ++i) one(z[i], slope[i]);
    };
    switch (activation) {
        case Activation::none:
            return;
        case Activation::sigmoid:
            return each([](Real& y, Real& dy) {
                y = sigmoid(y);
                dy = y * (1 - y);
            });
        case Activation::relu:
            return each([](Real& y, Real& dy) {
                dy = y > 0 ? 1 : 0;
                y *= dy;
            });
        case Activation::tanh:
            return each([](Real& y, Real& dy) {
                y = std::tanh(y);
                dy = 1 - y * y;
            });
        case Activation::gelu:  // z times the standard normal cumulative distribution at z
            return each([density_at_0 = static_cast<Real>(1 / std::sqrt(2 * std::numbers::pi))](Real& y, Real& dy) {
                const Real below = (1 + std::erf(y / std::numbers::sqrt2_v<Real>)) / 2;
                dy = below + y * density_at_0 * std::exp(-y * y / 2);
                y *= below;
            });
        case Activation::silu:
            return each([](Real& y, Real& dy) {
                const Real s = sigmoid(y);
                dy = s * (1 + y * (1 - s));
                y *= s;
            });
    }
}

/// Base class of the engines without libtorch; derived classes implement the network.
template <typename Real>
class PlainTiles : public Engine<Real> {
  public:
    PlainTiles(const Weights& weights, const Options& options)
        : weights_(weights.values.begin(), weights.values.end()),
          mean_(num_features, Real{0}),
          std_(num_features, Real{1}),
          adam_(options.adam, options.semantics == Semantics::reference, weights.values.size()) {}

    void set_normalization(const Normalization& normalization) override {
        mean_.assign(normalization.mean.begin(), normalization.mean.end());
        std_.assign(normalization.std.begin(), normalization.std.end());
    }

    std::vector<double> weights() const override { return {weights_.begin(), weights_.end()}; }

    Real mean_loss(const Microbatch<Real>& microbatch, Real* gradient) override {
        const Real rows = static_cast<Real>(microbatch.rows);
        return accumulate(microbatch, 2 / rows, gradient) / rows;
    }

    Real summed_loss(const Microbatch<Real>& microbatch, Real* gradient) override {
        return accumulate(microbatch, 2, gradient);
    }

    void adam_step(const Real* gradient) override { adam_.step(weights_.data(), gradient); }

    std::vector<Real> forward(const std::vector<Real>& x) override {
        std::vector<Real> y;
        y.reserve(x.size() / num_features);
        for_each_tile(x.data(), x.size() / num_features, [&](std::size_t, std::size_t rows) {
            for (std::size_t r = 0; r < rows; ++r) y.push_back(output_of(r));
        });
        return y;
    }

    Prediction predict(const std::vector<Real>& x) override {
        Prediction prediction;
        for_each_tile(x.data(), x.size() / num_features,
                      [&](std::size_t, std::size_t rows) { append_prediction(rows, prediction); });
        return prediction;
    }

    void save_model(const std::string& path) override {
        throw UserError(path + ": only --engine torch writes libtorch archives");
    }

  protected:
    /// Computes the outputs and slopes of a tile from x (rows,F), not normalised.
    virtual void run(const Real* x, std::size_t rows) = 0;
    virtual Real output_of(std::size_t r) const = 0;
    /// Returns the weighted squared errors of all rows; writes scale / 2 times their gradient to gradient (K).
    virtual Real accumulate(const Microbatch<Real>& microbatch, Real scale, Real* gradient) = 0;
    /// Appends y and dy/dx of the tile's rows, in physical units.
    virtual void append_prediction(std::size_t rows, Prediction& prediction) = 0;

    /// Calls run() for each tile of the n rows of x (n,F), and work(start, rows) after each.
    template <typename Work>
    void for_each_tile(const Real* x, std::size_t n, Work&& work) {
        for (std::size_t start = 0; start < n; start += tile_rows) {
            const std::size_t rows = std::min(tile_rows, n - start);
            run(x + start * num_features, rows);
            work(start, rows);
        }
    }

    std::vector<Real> weights_;     // (K)
    std::vector<Real> mean_, std_;  // (F)

  private:
    Adam<Real> adam_;
};
