/* Add samples to the statistics, and keep those with low keys. */

/* The finite samples of a block: inputs [count][F], then targets [count][O]. */
static float *inputs_in_block(const mt_collection *set, int i) { return set->block + (size_t)i * (size_t)set->num_inputs; }

static float *targets_in_block(const mt_collection *set, int i) {
    return inputs_in_block(set, BLOCK_SAMPLES) + (size_t)i * (size_t)set->num_targets;
}

static int stratum_of(const mt_collection *set, int i, const int *region) {
    if (set->settings.num_regions) return *region;
    const int column = set->column_of_strata, target = column - set->num_inputs;
    const float value = target < 0 ? inputs_in_block(set, i)[column] : targets_in_block(set, i)[target];
    int found = 0;
    while (found < set->settings.num_edges && value >= set->settings.edges[found]) ++found;
    return found;
}

static void fold_all(mt_collection *set) {
    for (int c = 0; c < set->num_columns; ++c) fold(set->columns + c);
    set->adds_since_fold = 0;
}

/* Keep a sample if its key is low enough. */
static void keep(mt_collection *set, stratum *one, const sample_key *key, const float *inputs, const float *targets) {
    const ptrdiff_t place = row_for(one, set->capacity, key);
    if (place < 0) return;
    float *row = set->rows + (size_t)place * (size_t)set->num_columns;
    memcpy(row, inputs, (size_t)set->num_inputs * sizeof *row);
    memcpy(row + set->num_inputs, targets, (size_t)set->num_targets * sizeof *row);
}

/* Add `rows` [count][num_columns] to the statistics of these columns. */
static void add_to_sums(const mt_collection *set, column_sums *columns, int num_columns, int count, const float *rows) {
    if (set->splits_squares && count >= FEWEST_SAMPLES)
        add_block(columns, num_columns, count, rows, block_numbers_in(set->block_memory, num_columns));
    else
        for (int c = 0; c < num_columns; ++c) add_one_by_one(columns + c, num_columns, count, rows + c);
}

/* Add the `count` samples of the block to the statistics. */
static void add_to_statistics(mt_collection *set, int count) {
    if (set->adds_since_fold > ADDS_BEFORE_FOLD - BLOCK_SAMPLES) fold_all(set);
    set->adds_since_fold += count;
    add_to_sums(set, set->columns, set->num_inputs, count, inputs_in_block(set, 0));
    add_to_sums(set, set->columns + set->num_inputs, set->num_targets, count, targets_in_block(set, 0));
}

/* Return MT_OK if the samples match the settings; otherwise no sample is added. */
static int check_shapes(mt_collection *set, int64_t num_samples, int has_arrays, int num_inputs, int num_targets,
                        const int *regions) {
    if (!set || !set->is_open) return MT_NOT_OPEN;
    if (num_inputs != set->num_inputs || num_targets != set->num_targets || num_samples < 0) {
        snprintf(set->message, MESSAGE_LENGTH, "%lld samples of %d inputs and %d targets; the settings have %d and %d",
                 (long long)num_samples, num_inputs, num_targets, set->num_inputs, set->num_targets);
        return MT_WRONG_SHAPE;
    }
    if (num_samples && !has_arrays) return failed(set, MT_WRONG_SHAPE, "cells, inputs or targets are a null pointer");
    for (int64_t i = 0; set->settings.num_regions && i < num_samples; ++i)
        if (!regions || regions[i] < 0 || regions[i] >= set->settings.num_regions)
            return failed(set, MT_WRONG_SHAPE, "every sample needs a region from 0 to strata.regions - 1");
    return MT_OK;
}

/* Copy the finite samples among the `count` samples that start with `first` into the block, and their positions into
 * `places`. Return how many are finite. */
FOR_WIDE_VECTORS
static int take_block(const mt_collection *set, int64_t first, int count, values_view inputs, values_view targets,
                      int *places) {
    const int num_inputs = set->num_inputs, num_targets = set->num_targets;
    for (int i = 0; i < count; ++i) places[i] = i;
    if (take(inputs_in_block(set, 0), inputs, first, count, num_inputs) &&
        take(targets_in_block(set, 0), targets, first, count, num_targets))
        return count;
    int found = 0;
    for (int i = 0; i < count; ++i)
        if (take(inputs_in_block(set, found), inputs, first + i, 1, num_inputs) &&
            take(targets_in_block(set, found), targets, first + i, 1, num_targets))
            places[found++] = i;
    return found;
}

/* Compute the hashes of cells in one loop; for most samples the hash alone decides that they are not kept. */
FOR_WIDE_VECTORS
static void hash_cells(uint64_t stream, int count, const int64_t *cell_ids, uint64_t *hashes) {
    for (int i = 0; i < count; ++i) hashes[i] = hash_of_cell(stream, cell_ids[i]);
}

/* Keep the samples with low keys among the `count` samples of the block; cells and regions are those of all samples. */
static void keep_lowest(mt_collection *set, int64_t step, int count, const int *places, const uint64_t *hashes,
                        const int64_t *cell_ids, const int *regions) {
    const int num_strata = set->num_strata;
    for (int i = 0; i < count; ++i) {
        const int place = places[i];
        stratum *one = set->strata + (num_strata > 1 ? stratum_of(set, i, regions ? regions + place : NULL) : 0);
        ++one->shown;
        if (hashes[place] > one->limit.first) continue;
        const sample_key key = {hashes[place], ordered(step), ordered(cell_ids[place])};
        keep(set, one, &key, inputs_in_block(set, i), targets_in_block(set, i));
    }
}

static int add(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, values_view inputs,
               values_view targets, const int *regions) {
    const uint64_t stream = stream_of_step(set->settings.seed, step);
    uint64_t hashes[BLOCK_SAMPLES];
    int places[BLOCK_SAMPLES];
    int64_t left_out = 0;
    for (int64_t first = 0; first < num_samples; first += BLOCK_SAMPLES) {
        const int length = num_samples - first < BLOCK_SAMPLES ? (int)(num_samples - first) : BLOCK_SAMPLES;
        const int count = take_block(set, first, length, inputs, targets, places);
        hash_cells(stream, length, cell_ids + first, hashes);
        keep_lowest(set, step, count, places, hashes, cell_ids + first, regions ? regions + first : NULL);
        add_to_statistics(set, count);
        left_out += length - count;
    }
    set->was_shown = set->was_shown || num_samples > 0;
    set->left_out += left_out;
    if (left_out == 0) return MT_OK;
    snprintf(set->message, MESSAGE_LENGTH, "%lld of %lld samples of step %lld left out: a value is not a finite float",
             (long long)left_out, (long long)num_samples, (long long)step);
    return MT_LEFT_OUT;
}
