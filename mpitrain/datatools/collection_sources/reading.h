/* Read a file that collected_file.h wrote, on rank 0. */

/* Return a variable; fail unless it has `num_axes` dimensions: netCDF reads a start and a count for each of them. */
static int variable_of(netcdf_file *out, const char *name, int num_axes) {
    int variable = 0, found = 0;
    TRY(nc_inq_varid(out->file, name, &variable));
    TRY(nc_inq_varndims(out->file, variable, &found));
    if (found != num_axes) TRY(NC_EINVALCOORDS);
    return variable;
}

/* Return an attribute; fail unless it is a single number: netCDF would write as many as the file has. */
static long long number_of_attribute(netcdf_file *out, const char *name) {
    size_t length = 0;
    long long number = 0;
    TRY(nc_inq_attlen(out->file, NC_GLOBAL, name, &length));
    if (length != 1) TRY(NC_EINVAL);
    TRY(nc_get_att_longlong(out->file, NC_GLOBAL, name, &number));
    return number;
}

static size_t length_of(netcdf_file *out, const char *name) {
    int dimension = 0;
    size_t length = 0;
    TRY(nc_inq_dimid(out->file, name, &dimension));
    TRY(nc_inq_dimlen(out->file, dimension, &length));
    return length;
}

/* Return whether the file was written with these settings. */
static int has_same_settings(netcdf_file *out, const collection_settings *settings) {
    size_t length = 0;
    char *found = calloc(1, NUM_TEXT + 1), *wanted = calloc(1, NUM_TEXT + 1);
    if (!found || !wanted) TRY(NC_ENOMEM);
    TRY(nc_inq_attlen(out->file, NC_GLOBAL, "collection", &length));
    if (length > NUM_TEXT) TRY(NC_EINVAL);
    TRY(nc_get_att_text(out->file, NC_GLOBAL, "collection", found));
    if (wanted) describe_settings(settings, wanted, NUM_TEXT);
    const int is_same = !out->error && !strcmp(found, wanted);
    free(found);
    free(wanted);
    return is_same;
}

static void get_sums(netcdf_file *out, column_sums *columns, int num_columns, stratum *strata, int count) {
    const int sums = variable_of(out, "sum_digits", 2), squares = variable_of(out, "square_digits", 2);
    const int ranges = variable_of(out, "ordered_range", 2), shown = variable_of(out, "shown", 1);
    for (size_t c = 0; c < (size_t)num_columns; ++c) {
        const size_t start[2] = {c, 0}, of_sum[2] = {1, SUM_DIGITS}, of_square[2] = {1, SQUARE_DIGITS}, two[2] = {1, 2};
        long long digits[SQUARE_DIGITS] = {0};
        int ends[2] = {0, 0};
        TRY(nc_get_vara_longlong(out->file, sums, start, of_sum, digits));
        for (int i = 0; i < SUM_DIGITS; ++i) columns[c].sum[i] = digits[i];
        TRY(nc_get_vara_longlong(out->file, squares, start, of_square, digits));
        for (int i = 0; i < SQUARE_DIGITS; ++i) columns[c].squares[i] = digits[i];
        TRY(nc_get_vara_int(out->file, ranges, start, two, ends));
        columns[c].highest = ends[0];
        columns[c].lowest_negated = ends[1];
    }
    for (size_t s = 0; s < (size_t)count; ++s) {
        long long number = 0;
        TRY(nc_get_var1_longlong(out->file, shown, &s, &number));
        strata[s].shown = number;
    }
}

static void set_number(sample_head *head, int which, long long number) {
    if (which == 0) head->step = number;
    if (which == 1) head->cell = number;
    if (which == 2) head->stratum = (int32_t)number;
}

/* Read `block->count` samples, starting at `row`, into records; `values` and `numbers` are buffers. */
static void get_records(netcdf_file *out, const collected *block, size_t row, float *values, long long *numbers) {
    static const char *const heads[] = {"step", "cell", "stratum"};
    const collection_settings *settings = block->settings;
    for (int which = 0; which < 3; ++which) {
        const int variable = variable_of(out, heads[which], 1);
        TRY(nc_get_vara_longlong(out->file, variable, &row, &block->count, numbers));
        for (size_t i = 0; i < block->count; ++i) set_number(head_of(block, i), which, numbers[i]);
    }
    for (int v = 0, column = 0; v < settings->num_inputs + settings->num_targets; ++v) {
        const size_t width = (size_t)width_of(settings->variables + v);
        const size_t start[2] = {row, 0}, count[2] = {block->count, width};
        const int variable = variable_of(out, settings->variables[v].name, settings->variables[v].levels ? 2 : 1);
        TRY(nc_get_vara_float(out->file, variable, start, count, values));
        for (size_t i = 0; i < block->count; ++i)
            memcpy(values_of(block, i) + column, values + i * width, width * sizeof *values);
        column += (int)width;
    }
}

/* Keep the samples of a block of the file. Return MT_FILE_FAILED for an invalid stratum. */
static int keep_block(mt_collection *set, const collected *block) {
    for (size_t i = 0; i < block->count; ++i) {
        const sample_head *head = head_of(block, i);
        const uint64_t stream = stream_of_step(set->settings.seed, head->step);
        const sample_key key = {hash_of_cell(stream, head->cell), ordered(head->step), ordered(head->cell)};
        if (head->stratum < 0 || head->stratum >= set->num_strata) return MT_FILE_FAILED;
        const float *values = values_of(block, i);
        keep(set, set->strata + head->stratum, &key, values, values + set->num_inputs);
    }
    return MT_OK;
}

static int read_samples(mt_collection *set, netcdf_file *out) {
    const size_t total = length_of(out, "sample"), width = (size_t)set->num_columns, block_rows = 4096;
    const size_t record_bytes = sizeof(sample_head) + (width * sizeof(float) + 7) / 8 * 8;
    float *values = malloc(block_rows * width * sizeof *values);
    long long *numbers = malloc(block_rows * sizeof *numbers);
    collected block = {&set->settings, malloc(block_rows * record_bytes), record_bytes, 0, NULL, 0, NULL, NULL, 0};
    int status = values && numbers && block.records ? MT_OK : MT_NO_MEMORY;
    for (size_t row = 0; row < total && status == MT_OK && !out->error; row += block.count) {
        block.count = total - row < block_rows ? total - row : block_rows;
        get_records(out, &block, row, values, numbers);
        if (!out->error) status = keep_block(set, &block);
    }
    free(values);
    free(numbers);
    free(block.records);
    return status;
}

/* Read the complete file on rank 0; the other ranks start empty. */
static int read_on_rank_0(mt_collection *set, const char *path) {
    netcdf_file file = {0, 0}, *out = &file;
    int status = MT_OK;
    char stored[NUM_DIGITS], digits[NUM_DIGITS + 1];
    long place;
    const int damage = checksum_of(path, stored, digits, &place);
    if (damage || memcmp(stored, digits, NUM_DIGITS)) {
        const char *reason = damage && damage != EINVAL ? strerror(damage) : "damaged, or of an earlier version";
        snprintf(set->message, MESSAGE_LENGTH, "%.300s: cannot be read (%.150s)", path, reason);
        return MT_FILE_FAILED;
    }
    TRY(nc_open(path, NC_NOWRITE, &out->file));
    const int is_open = !out->error;
    if (is_open && !has_same_settings(out, &set->settings)) {
        status = MT_OTHER_COLLECTION;
        snprintf(set->message, MESSAGE_LENGTH, "%.300s: was written with other settings, or is not a collection", path);
    }
    if (is_open && status == MT_OK) {
        status = read_samples(set, out);
        get_sums(out, set->columns, set->num_columns, set->strata, set->num_strata);
        set->left_out = number_of_attribute(out, "samples_left_out");
    }
    if (is_open) nc_close(out->file);
    if (!out->error || status != MT_OK) return status;
    snprintf(set->message, MESSAGE_LENGTH, "%.300s: cannot be read (%.150s)", path, nc_strerror(out->error));
    return MT_FILE_FAILED;
}
