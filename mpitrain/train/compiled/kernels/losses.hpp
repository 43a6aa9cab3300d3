// Losses of a single target, and their derivatives by the error.
#pragma once

#include "arithmetic.hpp"

#ifndef LOSS  // for editors, which parse this file without the command line
#define LOSS mse
#endif

namespace {

enum Loss { mse, mae, huber };
constexpr Loss loss_kind = LOSS;

Real loss_of(Real error) {
    const Real size = std::fabs(error);
    if constexpr (loss_kind == mae) return size;
    if constexpr (loss_kind == huber) return size < 1 ? Real(0.5) * error * error : size - Real(0.5);
    return error * error;
}

Real loss_slope(Real error) {
    const Real sign = static_cast<Real>((error > 0) - (error < 0));
    if constexpr (loss_kind == mae) return sign;
    if constexpr (loss_kind == huber) return std::fabs(error) < 1 ? error : sign;
    return 2 * error;
}

}  // namespace
