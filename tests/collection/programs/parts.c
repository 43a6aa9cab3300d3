/* Parts that need no MPI, for `test_collection_parts.py`, which calls them in its own process. */
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int MPI_Comm;
typedef int MPI_Fint;
#include "mpitrain_collection.h"
#include "build_options.h"
#include "settings.h"
#include "keyed_hash.h"
#include "exact_sums.h"
#include "block_sums.h"

enum { MPI_SUCCESS, MPI_INT64_T, MPI_SUM };
static int MPI_Allreduce(const void *from, void *to, int count, int type, int operation, MPI_Comm comm) {
    (void)type, (void)operation, (void)comm;
    memcpy(to, from, (size_t)count * sizeof(int64_t)); /* the sum over one rank */
    return MPI_SUCCESS;
}
#include "lowest.h"

uint64_t hash_of(uint64_t seed, int64_t step, int64_t cell) { return hash_of_cell(stream_of_step(seed, step), cell); }

/* numbers = mean, standard deviation, minimum, maximum. */
static void numbers_of(column_sums *column, int64_t count, double *numbers) {
    fold(column);
    numbers[0] = mean_of(column, count);
    numbers[1] = standard_deviation_of(column, count);
    numbers[2] = unordered_float(~column->lowest_negated);
    numbers[3] = unordered_float(column->highest);
}

/* numbers = mean, standard deviation, minimum, maximum of float values; folded after every `adds` of them. */
void statistics_of(const float *values, int64_t count, int64_t adds, double *numbers) {
    column_sums column;
    clear_sums(&column);
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        add_value(&column, bits);
        if ((i + 1) % adds == 0) fold(&column);
    }
    numbers_of(&column, count, numbers);
}

/* The same of the columns of rows, numbers [num_columns][4], added in blocks. Returns how many columns were added value by
 * value at least once. */
int statistics_of_blocks(const float *rows, int num_columns, int num_blocks, const int *counts, double *numbers) {
    column_sums *columns = malloc((size_t)num_columns * sizeof *columns);
    double *memory = malloc(bytes_of_block_numbers(num_columns));
    const block_numbers of = block_numbers_in(memory, num_columns);
    int *is_single = calloc((size_t)num_columns, sizeof *is_single), num_single = 0;
    int64_t total = 0;
    for (int c = 0; c < num_columns; ++c) clear_sums(columns + c);
    for (int k = 0; k < num_blocks; ++k) {
        add_block(columns, num_columns, counts[k], rows, of);
        for (int c = 0; c < num_columns; ++c) is_single[c] |= of.split[c] == 0;
        rows += (size_t)counts[k] * (size_t)num_columns;
        total += counts[k];
    }
    for (int c = 0; c < num_columns; ++c) {
        num_single += is_single[c];
        numbers_of(columns + c, total, numbers + 4 * c);
    }
    free(columns);
    free(memory);
    free(is_single);
    return num_single;
}

/* Add samples with these hashes and cells; from `half` on with a limit that ranks have agreed on. Put the numbers of those
 * kept into `found`, the lowest first, and return how many they are; -1 where one lies in a row of another. */
int lowest_of(const uint64_t *hashes, const int64_t *cells, int count, int capacity, int half, uint64_t limit, int *found) {
    const size_t room = room_for((size_t)capacity);
    kept_sample *kept = malloc(room * sizeof *kept);
    int *rows = malloc(room * sizeof *rows);
    stratum one = empty_stratum(kept, 0);
    for (int i = 0; i < count; ++i) {
        const sample_key key = {hashes[i], 5, ordered(cells[i])};
        if (i == half) one.limit.first = limit;
        const ptrdiff_t row = row_for(&one, (size_t)capacity, &key);
        if (row >= 0) rows[row] = i;
    }
    int64_t counts[2 * CANDIDATES];
    int num_found = 0;
    sort_kept(&one);
    agree_limits(&one, 1, (size_t)capacity, counts, 0);
    for (size_t i = one.count; i-- > 0;)
        if (compare_keys(&kept[i].key, &one.limit) <= 0) {
            const int number = found[num_found++] = rows[kept[i].row];
            if (hashes[number] != kept[i].key.first || cells[number] != unordered(kept[i].key.cell)) num_found = -1;
            if (num_found < 0) break;
        }
    free(kept);
    free(rows);
    return num_found;
}

int adds_in_blocks(void) { return splits_squares(); }

/* Return the status of settings, with what is wrong in `message` or what was read, as numbers, in it. */
int read_text(const char *text, char *message) {
    collection_settings settings;
    memset(&settings, 0, sizeof settings);
    char *copy = malloc(strlen(text) + 1);
    strcpy(copy, text);
    const int status = read_settings(&settings, "collect.yaml", copy, message);
    if (status == MT_OK) {
        const int inputs = num_values(settings.variables, settings.num_inputs);
        const int targets = num_values(settings.variables + settings.num_inputs, settings.num_targets);
        snprintf(message, MESSAGE_LENGTH, "%s %lld %llu %d %d %d %s", settings.output, (long long)settings.samples,
                 (unsigned long long)settings.seed, inputs, targets, num_strata(&settings), settings.variables[0].units);
    }
    free(settings.variables);
    free(copy);
    return status;
}
