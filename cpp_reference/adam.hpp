#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "options.hpp"

/// Adam for K weights in one flat vector, without libtorch. The first moment is computed as in libtorch (reference) or
/// as in Python's torch (standard): mathematically equal, but rounded differently.
template <typename Real>
class Adam {
  public:
    Adam(const AdamOptions& options, bool is_reference, std::size_t num_weights)
        : options_(options), is_reference_(is_reference), first_moment_(num_weights), second_moment_(num_weights) {}

    void step(Real* weights, const Real* gradient) {
        ++step_;
        const auto t = static_cast<double>(step_);
        const auto beta1 = static_cast<Real>(options_.beta1), beta2 = static_cast<Real>(options_.beta2);
        const auto one_minus_beta1 = static_cast<Real>(1 - options_.beta1);
        const auto one_minus_beta2 = static_cast<Real>(1 - options_.beta2);
        const auto epsilon = static_cast<Real>(options_.epsilon);
        const auto bias_correction2_sqrt = static_cast<Real>(std::sqrt(1 - std::pow(options_.beta2, t)));
        const auto step_size = static_cast<Real>(options_.learning_rate / (1 - std::pow(options_.beta1, t)));
        Real* m = first_moment_.data();
        Real* v = second_moment_.data();
        const std::size_t num_weights = first_moment_.size();
        for (std::size_t k = 0; k < num_weights; ++k) {
            m[k] = is_reference_ ? m[k] * beta1 + gradient[k] * one_minus_beta1
                                 : m[k] + (gradient[k] - m[k]) * one_minus_beta1;
            v[k] = v[k] * beta2 + gradient[k] * gradient[k] * one_minus_beta2;
            weights[k] -= step_size * m[k] / (std::sqrt(v[k]) / bias_correction2_sqrt + epsilon);
        }
    }

  private:
    AdamOptions options_;
    bool is_reference_;
    std::vector<Real> first_moment_, second_moment_;  // (K)
    std::int64_t step_ = 0;
};
