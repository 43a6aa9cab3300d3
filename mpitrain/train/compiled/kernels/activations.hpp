// Activation functions and their derivatives.
#pragma once

#include "functions.hpp"

namespace {

enum Activation { identity, sigmoid, tanh, relu, gelu, silu };

template <Activation kind>
Real activate(Real z) {
    if constexpr (kind == sigmoid) return 1 / (1 + exponential(-z));
    if constexpr (kind == tanh) return hyperbolic_tangent(z);
    if constexpr (kind == relu) return z < 0 ? 0 : z;  // a NaN stays one
    if constexpr (kind == gelu) return z * Real(0.5) * (1 + error_function(z * Real(0.70710678118654752440)));
    if constexpr (kind == silu) return z / (1 + exponential(-z));
    return z;
}

/// The derivative by z, computed from z and the activation y.
template <Activation kind>
Real slope(Real z, Real y) {
    if constexpr (kind == sigmoid) return y * (1 - y);
    if constexpr (kind == tanh) return 1 - y * y;
    if constexpr (kind == relu) return y > 0 ? 1 : 0;  // y > 0 if and only if z > 0
    if constexpr (kind == gelu) {
        const Real density = exponential(Real(-0.5) * z * z) * Real(0.39894228040143267794);
        return Real(0.5) * (1 + error_function(z * Real(0.70710678118654752440))) + z * density;
    }
    if constexpr (kind == silu) {
        const Real s = 1 / (1 + exponential(-z));
        return s + y * (1 - s);
    }
    return 1;
}

/// Whether the derivative is computed from z, so that z must be kept.
constexpr bool slope_needs_sum(Activation kind) { return kind == gelu || kind == silu; }

Vector rectified(Vector z) { return z < Vector{} ? Vector{} : z; }
Vector slope_of_rectified(Vector y) { return y > Vector{} ? spread(1) : Vector{}; }

}  // namespace
