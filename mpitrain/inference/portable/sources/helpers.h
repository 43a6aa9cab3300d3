/* A product is rounded before it is added to, on every CPU: compilers must not fuse the two. */
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

/* The same for TILE samples, h [num_in][TILE] and sums [num_out][TILE], with vectors along the samples. */
static INLINE void dense_tile(int num_in, int num_out, const real *RESTRICT weight, const real *RESTRICT start,
                              const real *RESTRICT h, real *RESTRICT sums) {
    int j = 0;
    for (; j + 4 <= num_out; j += 4) { /* four sums at a time stay in registers */
        real sum_0[TILE], sum_1[TILE], sum_2[TILE], sum_3[TILE];
        for (int b = 0; b < TILE; ++b) {
            sum_0[b] = start ? start[j] : (real)0;
            sum_1[b] = start ? start[j + 1] : (real)0;
            sum_2[b] = start ? start[j + 2] : (real)0;
            sum_3[b] = start ? start[j + 3] : (real)0;
        }
        for (int i = 0; i < num_in; ++i) {
            const real *RESTRICT row = weight + i * num_out + j;
            for (int b = 0; b < TILE; ++b) {
                const real value = h[i * TILE + b];
                const real product_0 = row[0] * value, product_1 = row[1] * value;
                const real product_2 = row[2] * value, product_3 = row[3] * value;
                sum_0[b] = sum_0[b] + product_0;
                sum_1[b] = sum_1[b] + product_1;
                sum_2[b] = sum_2[b] + product_2;
                sum_3[b] = sum_3[b] + product_3;
            }
        }
        for (int b = 0; b < TILE; ++b) {
            sums[j * TILE + b] = sum_0[b];
            sums[(j + 1) * TILE + b] = sum_1[b];
            sums[(j + 2) * TILE + b] = sum_2[b];
            sums[(j + 3) * TILE + b] = sum_3[b];
        }
    }
    for (; j < num_out; ++j) {
        real sum[TILE];
        for (int b = 0; b < TILE; ++b) sum[b] = start ? start[j] : (real)0;
        for (int i = 0; i < num_in; ++i) {
            const real factor = weight[i * num_out + j];
            for (int b = 0; b < TILE; ++b) {
                const real product = factor * h[i * TILE + b];
                sum[b] = sum[b] + product;
            }
        }
        for (int b = 0; b < TILE; ++b) sums[j * TILE + b] = sum[b];
    }
}

/* h = without_tiny(sums * slope); slopes NULL: 1. */
static INLINE void times_slopes(int count, const real *RESTRICT sums, const real *RESTRICT slopes, real *RESTRICT h) {
    for (int k = 0; k < count; ++k) {
        const real product = slopes ? sums[k] * slopes[k] : sums[k];
        h[k] = without_tiny(product, VALUE_LIMIT);
    }
}

/* Values [num_values][TILE] of samples first, first + 1, ... of a batch; a short last tile repeats its last sample. */
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
