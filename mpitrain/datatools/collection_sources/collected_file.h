/* Writer of the NetCDF file: samples for training, and the state from which a collection continues. The format is CDF-5,
 * because its bytes do not depend on the version of the library. */

enum { ROWS_A_BLOCK = 65536, NUM_TEXT = 4096, NUM_DIGITS = 16 };

/* Header of a sample's record, as sent to rank 0; the values follow. */
typedef struct {
    int64_t step, cell;
    int32_t stratum, record_bytes;
} sample_head;

/* Content of the file, on rank 0: records [count] of `record_bytes` in order, and statistics of all samples so far. */
typedef struct {
    const collection_settings *settings;
    unsigned char *records;
    size_t record_bytes, count;
    const column_sums *columns;
    int num_columns;
    const int64_t *shown, *kept; /* of each stratum */
    int64_t left_out;
} collected;

static sample_head *head_of(const collected *all, size_t row) {
    return (sample_head *)(all->records + row * all->record_bytes);
}

static float *values_of(const collected *all, size_t row) { return (float *)(head_of(all, row) + 1); }

/* A file and the first error: after a failure TRY skips all further calls. */
typedef struct {
    int file, error;
} netcdf_file;

#define TRY(call) \
    do { \
        if (!(out->error)) out->error = (call); \
    } while (0)

static int put_dimension(netcdf_file *out, const char *name, size_t length) {
    int dimension = -1;
    TRY(nc_def_dim(out->file, name, length, &dimension));
    return dimension;
}

static int put_variable(netcdf_file *out, const char *name, nc_type type, int num_dimensions, int first, int second) {
    const int dimensions[2] = {first, second};
    int variable = -1;
    TRY(nc_def_var(out->file, name, type, num_dimensions, dimensions, &variable));
    return variable;
}

static void put_text(netcdf_file *out, int variable, const char *name, const char *text) {
    if (*text) TRY(nc_put_att_text(out->file, variable, name, strlen(text), text));
}

/* Write the statistics of all samples as attributes of a variable, one number per level. */
static void put_statistics(netcdf_file *out, int variable, const collected *all, int first_column, int width) {
    static const char *const names[] = {"all_mean", "all_standard_deviation", "all_minimum", "all_maximum"};
    int64_t count = 0;
    for (int s = 0; s < num_strata(all->settings); ++s) count += all->shown[s];
    double *numbers = malloc((size_t)width * sizeof *numbers);
    if (!numbers) TRY(NC_ENOMEM);
    for (int which = 0; which < 4 && !out->error; ++which) {
        for (int i = 0; i < width; ++i) {
            const column_sums *column = all->columns + first_column + i;
            numbers[i] = which == 0   ? mean_of(column, count)
                         : which == 1 ? standard_deviation_of(column, count)
                         : which == 2 ? unordered_float(~column->lowest_negated)
                                      : unordered_float(column->highest);
        }
        TRY(nc_put_att_double(out->file, variable, names[which], NC_DOUBLE, (size_t)width, numbers));
    }
    free(numbers);
}

/* Write the names as `mpitrain train` reads them, with levels as NAME[lev8=:]. */
static void put_names(netcdf_file *out, const char *attribute, const variable_settings *variables, int count) {
    const size_t size = (size_t)count * (NAME_LENGTH + 32) + 1;
    char *names = calloc(1, size);
    if (!names) TRY(NC_ENOMEM);
    for (int i = 0, used = 0; i < count && names; ++i) {
        used += snprintf(names + used, size - (size_t)used, "%s%s", i ? " " : "", variables[i].name);
        const int levels = variables[i].levels;
        if (levels) used += snprintf(names + used, size - (size_t)used, "[lev%d=:]", levels);
    }
    if (names) put_text(out, NC_GLOBAL, attribute, names);
    free(names);
}

/* Write the settings that must be the same at a restart as text. */
static void describe_settings(const collection_settings *settings, char *text, size_t size) {
    int used = snprintf(text, size, "samples %lld, seed %llu, strata %d of '%s'", (long long)settings->samples,
                        (unsigned long long)settings->seed, num_strata(settings), settings->stratifying);
    for (int i = 0; i < settings->num_edges && (size_t)used < size; ++i)
        used += snprintf(text + used, size - (size_t)used, " %.9g", (double)settings->edges[i]);
    for (int i = 0; i < settings->num_inputs + settings->num_targets && (size_t)used < size; ++i)
        used += snprintf(text + used, size - (size_t)used, "; %s %s %d %s", i < settings->num_inputs ? "input" : "target",
                         settings->variables[i].name, settings->variables[i].levels, settings->variables[i].units);
}

static int dimension_of_levels(netcdf_file *out, int levels) {
    char name[32];
    int dimension = 0, coordinate;
    snprintf(name, sizeof name, "lev%d", levels);
    if (out->error || nc_inq_dimid(out->file, name, &dimension) == NC_NOERR) return dimension;
    dimension = put_dimension(out, name, (size_t)levels);
    coordinate = put_variable(out, name, NC_INT, 1, dimension, 0);
    put_text(out, coordinate, "axis", "Z");
    put_text(out, coordinate, "long_name", "level, from 0, in the order of the model");
    return dimension;
}

static void define_variables(netcdf_file *out, const collected *all, int sample, int *ids) {
    const collection_settings *settings = all->settings;
    for (int i = 0, column = 0; i < settings->num_inputs + settings->num_targets; ++i) {
        const variable_settings *one = settings->variables + i;
        const int levels = one->levels ? dimension_of_levels(out, one->levels) : 0;
        ids[i] = put_variable(out, one->name, NC_FLOAT, one->levels ? 2 : 1, sample, levels);
        put_text(out, ids[i], "units", one->units);
        put_text(out, ids[i], "standard_name", one->standard_name);
        put_text(out, ids[i], "long_name", one->long_name);
        put_statistics(out, ids[i], all, column, width_of(one));
        column += width_of(one);
    }
}

static void put_globals(netcdf_file *out, const collected *all) {
    const collection_settings *settings = all->settings;
    char *text = malloc(NUM_TEXT);
    if (!text) TRY(NC_ENOMEM);
    const long long left_out = all->left_out;
    put_text(out, NC_GLOBAL, "checksum", "0000000000000000"); /* first: see checksum_of */
    put_text(out, NC_GLOBAL, "title", "Samples collected in a running model, chosen by keyed hashes of step and cell");
    put_names(out, "input_variables", settings->variables, settings->num_inputs);
    put_names(out, "output_variables", settings->variables + settings->num_inputs, settings->num_targets);
    if (num_strata(settings) > 1) put_text(out, NC_GLOBAL, "weight_variable", "weight");
    if (text) describe_settings(settings, text, NUM_TEXT);
    if (text) put_text(out, NC_GLOBAL, "collection", text);
    TRY(nc_put_att_longlong(out->file, NC_GLOBAL, "samples_left_out", NC_INT64, 1, &left_out));
    free(text);
}

/* Write a variable: `width` values of each sample. */
static void put_values(netcdf_file *out, int variable, const collected *all, int first_column, int width) {
    const size_t block = all->count < ROWS_A_BLOCK ? all->count : ROWS_A_BLOCK;
    float *values = malloc(block * (size_t)width * sizeof *values);
    if (!values) TRY(NC_ENOMEM);
    for (size_t row = 0; row < all->count && !out->error; row += block) {
        const size_t rows = all->count - row < block ? all->count - row : block;
        for (size_t i = 0; i < rows; ++i)
            memcpy(values + i * (size_t)width, values_of(all, row + i) + first_column, (size_t)width * sizeof *values);
        const size_t start[2] = {row, 0}, count[2] = {rows, (size_t)width};
        TRY(nc_put_vara_float(out->file, variable, start, count, values));
    }
    free(values);
}

/* Return step (0), cell (1) or stratum (2) of a sample. */
static long long number_of(const sample_head *head, int which) {
    return which == 0 ? head->step : which == 1 ? head->cell : head->stratum;
}

/* Write step, cell and stratum of all samples. */
static void put_heads(netcdf_file *out, const int *variables, const collected *all) {
    const size_t block = all->count < ROWS_A_BLOCK ? all->count : ROWS_A_BLOCK;
    long long *numbers = malloc(block * sizeof *numbers);
    if (!numbers) TRY(NC_ENOMEM);
    for (size_t place = 0; place < 3 * all->count && !out->error;) {
        const size_t row = place % all->count, which = place / all->count;
        const size_t rows = all->count - row < block ? all->count - row : block;
        for (size_t i = 0; i < rows; ++i) numbers[i] = number_of(head_of(all, row + i), (int)which);
        TRY(nc_put_vara_longlong(out->file, variables[which], &row, &rows, numbers));
        place += rows;
    }
    free(numbers);
}

/* Write the weight of each sample: samples of its stratum per sample kept, scaled to 1 on average. */
static void put_weights(netcdf_file *out, int variable, const collected *all) {
    const size_t block = all->count < ROWS_A_BLOCK ? all->count : ROWS_A_BLOCK;
    double *weights = malloc(block * sizeof *weights);
    int64_t shown = 0;
    if (!weights) TRY(NC_ENOMEM);
    for (int s = 0; s < num_strata(all->settings); ++s) shown += all->shown[s];
    for (size_t row = 0; row < all->count && !out->error; row += block) {
        const size_t rows = all->count - row < block ? all->count - row : block;
        for (size_t i = 0; i < rows; ++i) {
            const int s = head_of(all, row + i)->stratum;
            const double of_stratum = quotient((double)all->shown[s], (double)all->kept[s]);
            weights[i] = quotient(of_stratum * (double)all->count, (double)shown);
        }
        TRY(nc_put_vara_double(out->file, variable, &row, &rows, weights));
    }
    free(weights);
}

/* Write the state for a restart: wide integers and ranges of all columns, and the strata's numbers of samples. */
static void put_sums(netcdf_file *out, const int *variables, const collected *all) {
    for (size_t c = 0; c < (size_t)all->num_columns; ++c) {
        const size_t start[2] = {c, 0}, sums[2] = {1, SUM_DIGITS}, squares[2] = {1, SQUARE_DIGITS}, range[2] = {1, 2};
        const column_sums *column = all->columns + c;
        const int ends[2] = {column->highest, column->lowest_negated};
        long long digits[SQUARE_DIGITS];
        for (int i = 0; i < SUM_DIGITS; ++i) digits[i] = column->sum[i];
        TRY(nc_put_vara_longlong(out->file, variables[0], start, sums, digits));
        for (int i = 0; i < SQUARE_DIGITS; ++i) digits[i] = column->squares[i];
        TRY(nc_put_vara_longlong(out->file, variables[1], start, squares, digits));
        TRY(nc_put_vara_int(out->file, variables[2], start, range, ends));
    }
    for (size_t s = 0; s < (size_t)num_strata(all->settings); ++s) {
        const long long shown = all->shown[s];
        TRY(nc_put_var1_longlong(out->file, variables[3], &s, &shown));
    }
}

static void put_levels(netcdf_file *out, const collection_settings *settings) {
    for (int i = 0; i < settings->num_inputs + settings->num_targets; ++i) {
        char name[32];
        int variable = 0;
        const int levels = settings->variables[i].levels;
        snprintf(name, sizeof name, "lev%d", levels);
        if (levels) TRY(nc_inq_varid(out->file, name, &variable));
        for (size_t level = 0; level < (size_t)levels; ++level) {
            const int number = (int)level;
            TRY(nc_put_var1_int(out->file, variable, &level, &number));
        }
    }
}

static void fill_file(netcdf_file *out, const collected *all) {
    const collection_settings *settings = all->settings;
    const int num_variables = settings->num_inputs + settings->num_targets;
    int heads[4], sums[4], filling, *ids = malloc((size_t)num_variables * sizeof *ids);
    if (!ids) TRY(NC_ENOMEM);
    TRY(nc_set_fill(out->file, NC_NOFILL, &filling));
    put_globals(out, all);
    const int sample = put_dimension(out, "sample", all->count);
    if (ids) define_variables(out, all, sample, ids);
    heads[0] = put_variable(out, "step", NC_INT64, 1, sample, 0);
    heads[1] = put_variable(out, "cell", NC_INT64, 1, sample, 0);
    heads[2] = put_variable(out, "stratum", NC_INT, 1, sample, 0);
    heads[3] = put_variable(out, "weight", NC_DOUBLE, 1, sample, 0);
    put_text(out, heads[3], "long_name", "samples of the stratum added for each one kept, 1 on average");
    const int column = put_dimension(out, "column", (size_t)all->num_columns);
    sums[0] = put_variable(out, "sum_digits", NC_INT64, 2, column, put_dimension(out, "sum_digit", SUM_DIGITS));
    sums[1] = put_variable(out, "square_digits", NC_INT64, 2, column, put_dimension(out, "square_digit", SQUARE_DIGITS));
    sums[2] = put_variable(out, "ordered_range", NC_INT, 2, column, put_dimension(out, "end", 2));
    sums[3] = put_variable(out, "shown", NC_INT64, 1, put_dimension(out, "strata", (size_t)num_strata(settings)), 0);
    put_text(out, sums[0], "long_name", "sum of all samples, in units of 2^-149, digits of 32 bits, the lowest first");
    put_text(out, sums[1], "long_name", "sum of all squares, in units of 2^-298, digits of 32 bits, the lowest first");
    TRY(nc_enddef(out->file));
    for (int i = 0, first = 0; i < num_variables && ids; first += width_of(settings->variables + i++))
        put_values(out, ids[i], all, first, width_of(settings->variables + i));
    put_heads(out, heads, all);
    put_weights(out, heads[3], all);
    put_sums(out, sums, all);
    put_levels(out, settings);
    free(ids);
}

/* Compute FNV-1a (Fowler, Noll, Vo) of a file's bytes, with '0' for the digits of the checksum itself, into `digits`.
 * `stored` receives the checksum in the file, `place` its position. Returns errno; EINVAL if the file has no checksum. */
static int checksum_of(const char *path, char *stored, char *digits, long *place) {
    static const char head[] = "checksum\0\0\0\2\0\0\0\0\0\0\0\20"; /* header of the attribute in CDF-5 */
    enum { HEAD_LENGTH = sizeof head - 1, BLOCK = 65536 };
    FILE *file = fopen(path, "rb");
    if (!file) return errno;
    unsigned char *bytes = malloc(BLOCK);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    *place = 0;
    for (size_t count; bytes && (count = fread(bytes, 1, BLOCK, file)) > 0;) {
        for (size_t i = 0; !*place && i + HEAD_LENGTH + NUM_DIGITS <= count; ++i)
            if (!memcmp(bytes + i, head, HEAD_LENGTH)) {
                *place = (long)(i + HEAD_LENGTH);
                memcpy(stored, bytes + *place, NUM_DIGITS);
                memset(bytes + *place, '0', NUM_DIGITS);
            }
        if (!*place) break; /* not in the first block: no checksum */
        for (size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    const int error = !bytes ? ENOMEM : ferror(file) ? EIO : *place ? 0 : EINVAL;
    free(bytes);
    fclose(file);
    snprintf(digits, NUM_DIGITS + 1, "%016llx", (unsigned long long)hash);
    return error;
}

/* Write the checksum into a file that has zeros in its place. Returns errno, or 0. */
static int put_checksum(const char *path) {
    char stored[NUM_DIGITS], digits[NUM_DIGITS + 1];
    long place;
    const int error = checksum_of(path, stored, digits, &place);
    FILE *file = error ? NULL : fopen(path, "r+b");
    if (!file) return error ? error : errno;
    const int is_put = !fseek(file, place, SEEK_SET) && fwrite(digits, 1, NUM_DIGITS, file) == NUM_DIGITS;
    return fclose(file) || !is_put ? EIO : 0;
}

/* Flush a file to the disk; some file systems report only now that they are full. Returns errno, or 0. */
static int flush_to_disk(const char *path) {
    const int file = open(path, O_RDONLY);
    if (file < 0) return errno;
    const int error = fsync(file) ? errno : 0;
    return close(file) && !error ? errno : error;
}

/* Return whether `path` is a regular file or does not exist: a rename would replace a device. */
static int is_regular(const char *path) {
    struct stat found;
    return stat(path, &found) || S_ISREG(found.st_mode);
}

/* Write the file atomically: under another name, which is renamed at the end. Returns a status. */
static int write_collected(const collected *all, const char *path, char *message) {
    if (!*path) return snprintf(message, MESSAGE_LENGTH, "the file has no name"), MT_FILE_FAILED;
    const size_t length = strlen(path) + sizeof ".partial";
    char *partial = malloc(length);
    if (!partial) return MT_NO_MEMORY;
    snprintf(partial, length, "%s.partial", path);
    netcdf_file file = {0, 0}, *out = &file;
    remove(partial); /* left by a killed model; removes a link, not its target */
    TRY(nc_create(partial, NC_NOCLOBBER | NC_64BIT_DATA, &out->file));
    const int is_open = !out->error;
    if (is_open) {
        fill_file(out, all);
        const int error = nc_close(out->file);
        TRY(error);
    }
    int system_error = out->error ? 0 : put_checksum(partial);
    if (!out->error && !system_error) system_error = flush_to_disk(partial);
    if (!out->error && !system_error && !is_regular(path)) system_error = EEXIST;
    if (!out->error && !system_error && rename(partial, path)) system_error = errno;
    if (out->error || system_error) {
        const char *reason = out->error ? nc_strerror(out->error) : strerror(system_error);
        snprintf(message, MESSAGE_LENGTH, "%.300s: cannot be written (%.100s); free space or change output", path, reason);
        if (is_open) remove(partial);
    }
    free(partial);
    return out->error || system_error ? MT_FILE_FAILED : MT_OK;
}
