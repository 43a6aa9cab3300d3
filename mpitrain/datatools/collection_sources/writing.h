/* Gather samples and sums of all ranks on rank 0, which writes the file. */

/* Sum the digits of all columns, the counts of the strata and the samples left out over all ranks. Collective. */
static int add_integers(mt_collection *set, column_sums *columns, int64_t *shown, int64_t *left_out, int64_t *buffer) {
    int64_t *next = buffer;
    for (int c = 0; c < set->num_columns; ++c) {
        for (int i = 0; i < SUM_DIGITS; ++i) *next++ = set->columns[c].sum[i];
        for (int i = 0; i < SQUARE_DIGITS; ++i) *next++ = set->columns[c].squares[i];
    }
    for (int s = 0; s < set->num_strata; ++s) *next++ = set->strata[s].shown;
    *next++ = set->left_out;
    const int error = MPI_Allreduce(MPI_IN_PLACE, buffer, (int)(next - buffer), MPI_INT64_T, MPI_SUM, set->comm);
    next = buffer;
    for (int c = 0; c < set->num_columns; ++c) {
        for (int i = 0; i < SUM_DIGITS; ++i) columns[c].sum[i] = *next++;
        for (int i = 0; i < SQUARE_DIGITS; ++i) columns[c].squares[i] = *next++;
        carry(columns[c].sum, SUM_DIGITS);
        carry(columns[c].squares, SQUARE_DIGITS);
    }
    for (int s = 0; s < set->num_strata; ++s) shown[s] = *next++;
    *left_out = *next;
    return error;
}

/* Reduce the highest and lowest values over all ranks. Collective. */
static int compare_ranges(mt_collection *set, column_sums *columns, int32_t *buffer) {
    for (int c = 0; c < set->num_columns; ++c) {
        buffer[2 * c] = set->columns[c].highest;
        buffer[2 * c + 1] = set->columns[c].lowest_negated;
    }
    const int error = MPI_Allreduce(MPI_IN_PLACE, buffer, 2 * set->num_columns, MPI_INT32_T, MPI_MAX, set->comm);
    for (int c = 0; c < set->num_columns; ++c) {
        columns[c].highest = buffer[2 * c];
        columns[c].lowest_negated = buffer[2 * c + 1];
    }
    return error;
}

/* Set `columns` to the sums and ranges over all ranks, and `shown` to the count of each stratum. Collective. */
static int sum_over_ranks(mt_collection *set, column_sums *columns, int64_t *shown, int64_t *left_out) {
    const size_t num_digits = (size_t)set->num_columns * (SUM_DIGITS + SQUARE_DIGITS);
    int64_t *buffer = malloc((num_digits + (size_t)set->num_strata + 1) * sizeof *buffer);
    int status = agreed(set, buffer ? MT_OK : MT_NO_MEMORY);
    fold_all(set);
    if (status == MT_OK && (add_integers(set, columns, shown, left_out, buffer) != MPI_SUCCESS ||
                            compare_ranges(set, columns, (int32_t *)buffer) != MPI_SUCCESS))
        status = MT_NOT_OPEN;
    free(buffer);
    return status;
}

/* Copy this rank's samples up to the agreed limits into records (NULL: only count); return their number. */
static size_t pack(const mt_collection *set, size_t record_bytes, unsigned char *records) {
    size_t count = 0;
    for (int s = 0; s < set->num_strata; ++s) {
        for (size_t i = 0; i < set->strata[s].count; ++i) {
            const kept_sample *one = set->strata[s].kept + i;
            if (compare_keys(&one->key, &set->strata[s].limit) > 0) continue;
            const sample_head head = {unordered(one->key.step), unordered(one->key.cell), s, (int32_t)record_bytes};
            unsigned char *record = records ? records + record_bytes * count : NULL;
            if (record) memcpy(record, &head, sizeof head);
            const size_t width = (size_t)set->num_columns;
            if (record) memcpy(record + sizeof head, set->rows + one->row * width, width * sizeof *set->rows);
            ++count;
        }
    }
    return count;
}

/* Gather all samples up to the agreed limits in `all->records` on rank 0. Collective. */
static int gather(mt_collection *set, collected *all) {
    int own = (int)pack(set, all->record_bytes, NULL), status = MT_OK, total = 0;
    int *counts = set->rank == 0 ? malloc(2 * (size_t)set->num_ranks * sizeof *counts) : NULL;
    if (set->rank == 0 && !counts) status = MT_NO_MEMORY;
    if ((status = agreed(set, status)) != MT_OK) return free(counts), status;
    int *places = counts ? counts + set->num_ranks : NULL;
    MPI_Gather(&own, 1, MPI_INT, counts, 1, MPI_INT, 0, set->comm);
    for (int r = 0; places && r < set->num_ranks; total += counts[r++]) places[r] = total;
    const size_t num_records = (size_t)(set->rank == 0 ? total : own);
    unsigned char *records = malloc(num_records * all->record_bytes + 1);
    if ((status = agreed(set, records ? MT_OK : MT_NO_MEMORY)) == MT_OK) {
        MPI_Datatype record;
        pack(set, all->record_bytes, records);
        MPI_Type_contiguous((int)all->record_bytes, MPI_BYTE, &record);
        MPI_Type_commit(&record);
        const int error = MPI_Gatherv(set->rank == 0 ? MPI_IN_PLACE : records, own, record, records, counts, places,
                                      record, 0, set->comm);
        MPI_Type_free(&record);
        status = agreed(set, error == MPI_SUCCESS ? MT_OK : MT_NOT_OPEN);
    }
    free(counts);
    if (set->rank != 0 || status != MT_OK) free(records), records = NULL;
    all->records = records;
    all->count = records ? (size_t)total : 0;
    return status;
}

static int by_step_and_cell(const void *a, const void *b) {
    const sample_head *one = a, *other = b;
    if (one->step != other->step) return one->step < other->step ? -1 : 1;
    if (one->cell != other->cell) return one->cell < other->cell ? -1 : 1;
    return memcmp(a, b, (size_t)one->record_bytes);
}

/* Sort the records and count those of each stratum; return MT_SHOWN_TWICE if two have the same cell and step. */
static int sort_records(collected *all, int64_t *kept) {
    int status = MT_OK;
    qsort(all->records, all->count, all->record_bytes, by_step_and_cell);
    for (size_t row = 0; row < all->count; ++row) {
        const sample_head *head = head_of(all, row), *before = row ? head_of(all, row - 1) : NULL;
        ++kept[head->stratum];
        if (before && before->step == head->step && before->cell == head->cell) status = MT_SHOWN_TWICE;
    }
    return status;
}

/* Sort and write the gathered samples. Called on rank 0. */
static int sort_and_write(mt_collection *set, collected *all, int64_t *kept, const char *path) {
    const int twice = sort_records(all, kept);
    const int status = write_collected(all, path, set->message);
    if (status != MT_OK || twice == MT_OK) return status;
    return failed(set, twice, "a step and cell was passed more than once, for example a halo cell of a tile");
}

static int write_with(mt_collection *set, const char *path, column_sums *columns, int64_t *counts) {
    collected all = {&set->settings, NULL, sizeof(sample_head), 0, columns, set->num_columns, counts, NULL, 0};
    int64_t *kept = counts + set->num_strata, shown = 0;
    all.record_bytes += ((size_t)set->num_columns * sizeof(float) + 7) / 8 * 8;
    all.kept = kept;
    for (int s = 0; s < set->num_strata; ++s) sort_kept(set->strata + s);
    const int error = agree_limits(set->strata, set->num_strata, set->capacity, counts, set->comm);
    int status = agreed(set, error == MPI_SUCCESS ? MT_OK : MT_NOT_OPEN);
    if (status == MT_OK) status = agreed(set, sum_over_ranks(set, columns, counts, &all.left_out));
    for (int s = 0; s < set->num_strata; ++s) kept[s] = 0, shown += counts[s];
    if (status == MT_OK && shown == 0) return failed(set, MT_NO_SAMPLES, "no finite sample was passed; no file is written");
    if (status == MT_OK) status = gather(set, &all);
    if (status == MT_OK) status = as_rank_0(set, set->rank == 0 ? sort_and_write(set, &all, kept, path) : MT_OK);
    free(all.records);
    return status;
}
