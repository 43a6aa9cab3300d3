/* Copy and check the values of samples, which are stored as finite floats. */

/* Copy values by their bits, so that -ffast-math removes no test, and no floating-point exception stops the model.
 * Return whether all are finite. */
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

/* Convert values without branches, so that the loop is vectorised: signs of integer differences classify a value.
 * Values that are too small for a normal float, or too large, are set to 0 before the conversion. Return whether all
 * are finite. */
static inline int take_doubles(float *taken, const double *values, size_t count) {
    const int64_t too_large = INT64_C(0x47efffffe0000000); /* FLT_MAX; rejected like all above, infinities and NaN */
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

/* Copy `count` samples of `width` values, starting with sample `first`; return whether all values are finite. */
static inline int take(float *taken, values_view from, int64_t first, int count, int width) {
    const size_t start = (size_t)first * (size_t)width, length = (size_t)count * (size_t)width;
    return from.floats ? take_floats(taken, from.floats + start, length)
                       : take_doubles(taken, from.doubles + start, length);
}
