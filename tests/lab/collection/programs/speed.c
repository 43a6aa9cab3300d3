/* What mt_add costs, in processor time: `test_collection_speed.py` prints it.      ./speed SETTINGS NUM_INPUTS NUM_TARGETS */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "mpitrain_collection.h"

enum { NUM_COLUMNS = 4608, NUM_STEPS = 300, NUM_TIMED = 20 };

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 4) return MPI_Finalize(), 2;
    const int num_inputs = atoi(argv[2]), num_targets = atoi(argv[3]);
    mt_collection *set;
    int status = mt_open_collection(&set, argv[1], MPI_COMM_WORLD);
    float *inputs = malloc(sizeof *inputs * NUM_COLUMNS * (size_t)num_inputs);
    float *targets = malloc(sizeof *targets * NUM_COLUMNS * (size_t)num_targets);
    int64_t *cells = malloc(sizeof *cells * NUM_COLUMNS);
    double first_s = 0, last_s = 0;
    for (int i = 0; i < NUM_COLUMNS; ++i) cells[i] = i;
    for (int i = 0; i < NUM_COLUMNS * num_inputs; ++i) inputs[i] = 280.0f + 10.0f * sinf((float)i * 0.37f);
    for (int i = 0; i < NUM_COLUMNS * num_targets; ++i) targets[i] = 1e-5f * cosf((float)i * 0.11f);
    for (int step = 0; step < NUM_STEPS && status == MT_OK; ++step) {
        const double started_s = now_s();
        status = mt_add(set, NUM_COLUMNS, cells, step, num_inputs, inputs, num_targets, targets, NULL);
        if (step < NUM_TIMED) first_s += now_s() - started_s;
        if (step >= NUM_STEPS - NUM_TIMED) last_s += now_s() - started_s;
    }
    const double a_column = 1e9 / NUM_TIMED / NUM_COLUMNS;
    printf("status %d, %d + %d values: %.0f ns a column until the collection is full, then %.0f ns\n", status, num_inputs,
           num_targets, first_s * a_column, last_s * a_column);
    free(inputs), free(targets), free(cells);
    mt_close(&set);
    return MPI_Finalize();
}
