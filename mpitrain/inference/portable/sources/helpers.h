/* Products are rounded before an addition, on every CPU: compilers must not fuse the two operations. */
static INLINE real without_tiny(real value, real limit) { return ABSOLUTE(value) < limit ? (real)0 : value; }

/* sums[j] = start[j] + h[0] weight[0][j] + h[1] weight[1][j] + ..., for one sample, with vectors along j. */
static INLINE void dense_one(int num_in, int num_out, const real *RESTRICT weight, const real *RESTRICT start,
                             const real *RESTRICT h, real *RESTRICT sums) {
    for (int j = 0; j < num_out; ++j) sums[j] = start ? start[j] : (real)0;
    for (int i = 0; i < num_in; ++i) {
        const real *RESTRICT row = weight + i * num_out;
        for (int j = 0; j < num_out; ++j) {
            const real product = row[j] * h[i];
            sums[j] = sums[j] + product;
        }
    }
}

/* h = without_tiny(sums * slopes); with NULL all slopes are 1. */
static INLINE void times_slopes(int count, const real *RESTRICT sums, const real *RESTRICT slopes, real *RESTRICT h) {
    for (int k = 0; k < count; ++k) {
        const real product = slopes ? sums[k] * slopes[k] : sums[k];
        h[k] = without_tiny(product, VALUE_LIMIT);
    }
}

/* Loads [num_values][TILE] of samples first, first + 1, ... of a batch; a short last tile repeats its last sample. */
static INLINE void load_tile(int num_values, size_t first, size_t count, size_t value_stride, size_t sample_stride,
                             const real *RESTRICT batch, real *RESTRICT tile) {
    for (int v = 0; v < num_values; ++v)
        for (size_t b = 0; b < TILE; ++b) {
            const size_t sample = first + (b < count ? b : count - 1);
            tile[(size_t)v * TILE + b] = batch[(size_t)v * value_stride + sample * sample_stride];
        }
}

static INLINE void store_tile(int num_values, size_t first, size_t count, size_t value_stride, size_t sample_stride,
                              const real *RESTRICT tile, real *RESTRICT batch) {
    for (int v = 0; v < num_values; ++v)
        for (size_t b = 0; b < count; ++b)
            batch[(size_t)v * value_stride + (first + b) * sample_stride] = tile[(size_t)v * TILE + b];
}
