/* Conversion of samples' values to the stored type: finite floats. */

/* Copy values and return whether all are finite. Integer operations on the bits: -ffast-math cannot remove the test, and
 * no floating-point exception is raised, which a model may trap. */
static inline int take_floats(float *taken, const float *values, size_t count) {
    int32_t num_not_finite = 0;
    for (size_t i = 0; i < count; ++i) {
        int32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        memcpy(taken + i, &bits, sizeof bits);
        num_not_finite |= (bits & 0x7f800000) == 0x7f800000;
    }
    return num_not_finite == 0;
}

/* Convert doubles to floats and return whether all are finite floats. Without branches, to be vectorised: the signs of
 * integer differences classify a value. A value that is too small or too large for a normal float is set to 0 before it
 * is converted. */
static inline int take_doubles(float *taken, const double *values, size_t count) {
    const int64_t too_large = INT64_C(0x47efffffe0000000); /* above FLT_MAX; includes infinity and NaN */
    const int64_t smallest_normal = INT64_C(0x3810000000000000);
    int64_t all_below = 0;
    for (size_t i = 0; i < count; ++i) {
        int64_t bits;
        memcpy(&bits, values + i, sizeof bits);
        const int64_t magnitude = bits & INT64_C(0x7fffffffffffffff), below_largest = too_large - 1 - magnitude;
        const int64_t kept = bits & ~((below_largest | (magnitude - smallest_normal)) >> 63);
        double value;
        memcpy(&value, &kept, sizeof value);
        taken[i] = (float)value;
        all_below |= below_largest;
    }
    return all_below >= 0;
}

typedef struct {
    const float *floats;
    const double *doubles;
} values_view;

/* Convert `count` samples of `width` values, beginning with sample `first`; return whether all values are finite. */
static inline int take(float *taken, values_view from, int64_t first, int count, int width) {
    const size_t start = (size_t)first * (size_t)width, length = (size_t)count * (size_t)width;
    return from.floats ? take_floats(taken, from.floats + start, length)
                       : take_doubles(taken, from.doubles + start, length);
}
