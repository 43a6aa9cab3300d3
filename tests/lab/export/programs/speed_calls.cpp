#include "speed_calls.hpp"

#include "in_c.h"
#include "in_cpp.hpp"

extern "C" {
void fortran_forward(const float *x, float *y);
void fortran_jacobian(const float *x, float *y, float *jacobian);
void fortran_forward_batch(int samples, const float *x, float *y);
void fortran_jacobian_batch(int samples, const float *x, float *y, float *jacobian);
}

const Calls c_calls = {
    "C", [](const float *x, float *y) { in_c_forward(x, y, nullptr); }, in_c_jacobian,
    [](int samples, const float *x, float *y) { in_c_forward_batch(samples, IN_C_ROW_MAJOR, x, y, nullptr); },
    [](int samples, const float *x, float *y, float *jacobian) {
        in_c_jacobian_batch(samples, IN_C_ROW_MAJOR, x, y, jacobian);
    }};

const Calls cpp_calls = {
    "C++", [](const float *x, float *y) { in_cpp::forward(x, y, nullptr); }, in_cpp::jacobian,
    [](int samples, const float *x, float *y) {
        in_cpp::forward_batch(samples, in_cpp::layout::row_major, x, y, nullptr);
    },
    [](int samples, const float *x, float *y, float *jacobian) {
        in_cpp::jacobian_batch(samples, in_cpp::layout::row_major, x, y, jacobian);
    }};

const Calls fortran_calls = {"Fortran", fortran_forward, fortran_jacobian, fortran_forward_batch,
                             fortran_jacobian_batch};
