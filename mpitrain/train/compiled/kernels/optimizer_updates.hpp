// The update of the parameters from the sum of all gradients.
//
//   n parameters
#pragma once

#include "dense_step.hpp"

namespace {

/// Parameters from number `first` to number `last`, without that one.
struct ParameterRange {
    int first, last;
};
constexpr ParameterRange all_parameters{0, num_parameters()};

/// Returns the number by which total [n + m + 3], the sum over all microbatches of all ranks, is to be divided for the
/// batch's mean gradient. If clip_norm is above 0, divides it here, scales it to a norm of at most clip_norm and
/// returns
/// 1. Sets loss_and_stop.
Real divisor_of_gradient(const Step& step, Real* total) {
    constexpr int n = num_parameters();
    const Real weight_sum = total[loss_entry + 1];
    step.loss_and_stop[0] = static_cast<double>(total[loss_entry]) / static_cast<double>(weight_sum);
    step.loss_and_stop[1] = static_cast<double>(total[loss_entry + 2]);
    if (step.clip_norm <= 0) return weight_sum;
    for (int i = 0; i < n; ++i) total[i] /= weight_sum;
    double squares = 0;
    for (int i = 0; i < n; ++i) squares += static_cast<double>(total[i]) * static_cast<double>(total[i]);
    const double shortened = step.clip_norm / (std::sqrt(squares) + 1e-6);
    for (int i = 0; i < n && shortened < 1; ++i) total[i] *= static_cast<Real>(shortened);
    return 1;
}

/// Calls use(divided), where divided(x) is x / divisor. By a power of two, as by the number of samples of most batches,
/// it is a product, which has the same bits and takes less time.
template <typename Use>
void with_division_by(Real divisor, const Use& use) {
    int exponent = 0;
    const Real factor = 1 / divisor;
    if (std::frexp(divisor, &exponent) == Real(0.5) && std::isfinite(factor)) {
        use([factor](Real x) { return x * factor; });
    } else {
        use([divisor](Real x) { return x / divisor; });
    }
}

/// Updates the running statistics of all layers with the sums [m] of all microbatches.
void update_running_statistics(const Step& step, const Real* sums) {
    for (int l = 0; l < num_layers; ++l)
        if (norm_channels(l) > 0)
            update_running(step.running + running_before(l), sums + moments_before(l), norm_channels(l));
}

/// The smallest number with a square that is a normal number.
constexpr Real smallest_with_square = is_float ? Real(1.0842022e-19) : Real(1.4916681462400413e-154);

/// Adam (Kingma and Ba, 2015); the weight decay is L2, or decoupled as in AdamW (Loshchilov and Hutter, 2019).
template <typename Divided>
void adam_step(const Step& step, const Real* total, const Divided& divided, double learning_rate,
               ParameterRange range) {
    const auto t = static_cast<std::int64_t>(*step.step_count += 1);
    const bool is_decoupled = step.optimizer == 1;
    const Real l2 = static_cast<Real>(is_decoupled ? 0 : step.weight_decay);
    const Real shrink = static_cast<Real>(is_decoupled ? 1 - learning_rate * step.weight_decay : 1);
    const Real keep = static_cast<Real>(step.beta2), one_minus_beta1 = static_cast<Real>(1 - step.beta1);
    const Real one_minus_beta2 = static_cast<Real>(1 - step.beta2), eps = static_cast<Real>(step.epsilon);
    const Real correction = static_cast<Real>(1 / std::sqrt(one_less_power(step.beta2, t)));
    const Real step_size = static_cast<Real>(learning_rate / one_less_power(step.beta1, t));
    Real* __restrict m = step.first_moment;
    Real* __restrict v = step.second_moment;
    Real* __restrict parameters = step.parameters;
    for (int i = range.first; i < range.last; ++i) {
        const Real g = divided(total[i]) + l2 * parameters[i];
        const Real squared = std::fabs(g) < smallest_with_square ? 0 : g * g;
        m[i] = without_tiny(m[i] + one_minus_beta1 * (g - m[i]));
        v[i] = without_tiny(keep * v[i] + one_minus_beta2 * squared);
        parameters[i] = shrink * parameters[i] - step_size * m[i] / (std::sqrt(v[i]) * correction + eps);
    }
}

/// Stochastic gradient descent with momentum as in torch: no dampening, L2 weight decay.
template <typename Divided>
void descent_step(const Step& step, const Real* total, const Divided& divided, double learning_rate,
                  ParameterRange range) {
    const Real rate = static_cast<Real>(learning_rate), keep = static_cast<Real>(step.momentum);
    const Real l2 = static_cast<Real>(step.weight_decay);
    Real* __restrict velocity = step.first_moment;
    Real* __restrict parameters = step.parameters;
    for (int i = range.first; i < range.last; ++i) {
        velocity[i] = without_tiny(keep * velocity[i] + divided(total[i]) + l2 * parameters[i]);
        parameters[i] -= rate * velocity[i];
    }
}

/// Moves the average of the parameters towards them; the influence of early steps decays soon.
void average_parameters(const Step& step, ParameterRange range) {
    const double t = static_cast<double>(step.average[num_parameters()] += 1);
    const Real fraction = static_cast<Real>(1 - std::min(step.average_decay, (1 + t) / (10 + t)));
    Real* __restrict average = step.average;
    const Real* __restrict parameters = step.parameters;
    for (int i = range.first; i < range.last; ++i) average[i] += fraction * (parameters[i] - average[i]);
}

}  // namespace
