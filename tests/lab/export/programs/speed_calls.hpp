// The exported network in three languages, behind the same four calls; x [samples][7], jacobian [samples][1][7].
#pragma once

struct Calls {
    const char *language;
    void (*forward)(const float *x, float *y);
    void (*jacobian)(const float *x, float *y, float *jacobian);
    void (*forward_batch)(int samples, const float *x, float *y);
    void (*jacobian_batch)(int samples, const float *x, float *y, float *jacobian);
};

extern const Calls c_calls, cpp_calls, fortran_calls;
