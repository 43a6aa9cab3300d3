/* Single calls beside a batch of the same samples, and beside the CPU's peak: `test_export_speed.py` prints it.
 *
 * Prints ns a sample of both, the median ratio, and the ns that the products alone take where multiplications and additions,
 * which may not be fused, fill the CPU's units. VECTOR_BYTES is that of its registers. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "net.h"

enum { SAMPLES = 4608, ROUNDS = 41, CHAINS = 6, STEPS = 200000, F = NET_NUM_INPUTS, O = NET_NUM_OUTPUTS };
typedef float vector __attribute__((vector_size(VECTOR_BYTES)));

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int rising(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, rising);
    return values[ROUNDS / 2];
}

/* ns of a vector's multiplication and addition: chains that do not wait for each other. */
static double peak_ns(void) {
    vector sums[CHAINS], factors[CHAINS], by = (vector){0} + 1.0000001f;
    for (int i = 0; i < CHAINS; ++i) sums[i] = (vector){0}, factors[i] = (vector){0} + 1.5f;
    const double started_ns = now_ns();
    for (int k = 0; k < STEPS; ++k) {
#pragma GCC unroll 6
        for (int i = 0; i < CHAINS; ++i) {
            vector product = factors[i] * by;
            __asm__("" : "+x"(product));
            sums[i] += product;
            __asm__("" : "+x"(sums[i]));
        }
    }
    const double taken_ns = now_ns() - started_ns;
    volatile float used = 0;
    for (int i = 0; i < CHAINS; ++i) used += sums[i][0];
    return taken_ns / ((double)STEPS * CHAINS);
}

int main(void) {
    float *x = malloc(sizeof *x * SAMPLES * F), *one = malloc(sizeof *one * SAMPLES * O);
    float *batch = malloc(sizeof *batch * SAMPLES * O);
    double one_ns[ROUNDS], batch_ns[ROUNDS], ratios[ROUNDS], peaks_ns[ROUNDS];
    for (int i = 0; i < SAMPLES * F; ++i)
        x[i] = net_inputs[i % F].mean + net_inputs[i % F].std * ((float)(i * 7919L % 2001) / 1000.0f - 1.0f);
    for (int round = 0; round < ROUNDS; ++round) {
        double started_ns = now_ns();
        for (int i = 0; i < SAMPLES; ++i) net_forward(x + i * F, one + i * O, NULL);
        one_ns[round] = (now_ns() - started_ns) / SAMPLES;
        started_ns = now_ns();
        net_forward_batch(SAMPLES, NET_ROW_MAJOR, x, batch, NULL);
        batch_ns[round] = (now_ns() - started_ns) / SAMPLES;
        ratios[round] = one_ns[round] / batch_ns[round];
        peaks_ns[round] = peak_ns();
    }
    if (memcmp(one, batch, sizeof *one * SAMPLES * O) != 0) return 1;
    const double num_vectors = (F * 64.0 + 64.0 * 64.0 + 64.0 * O) / (VECTOR_BYTES / (double)sizeof(float));
    printf("%.0f %.0f %.2f %.0f\n", median(one_ns), median(batch_ns), median(ratios), num_vectors * median(peaks_ns));
    return 0;
}
