/* Open a collection: read the file of settings, and allocate memory for the samples. */

/* Return the text of a file; NULL if it cannot be read. */
static char *text_of(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    size_t length = 0, size = 4096;
    char *text = malloc(size);
    while (text) {
        length += fread(text + length, 1, size - length - 1, file);
        if (length + 1 < size) break;
        char *grown = realloc(text, size *= 2);
        if (!grown) free(text);
        text = grown;
    }
    const int is_bad = ferror(file);
    fclose(file);
    if (text && is_bad) free(text), text = NULL;
    if (text) text[length] = 0;
    return text;
}

/* Return the text of rank 0's file on every rank; NULL if it cannot be read. Collective. */
static char *shared_text(mt_collection *set, const char *path) {
    char *text = set->rank == 0 ? text_of(path) : NULL;
    int64_t length = text ? (int64_t)strlen(text) : -1;
    MPI_Bcast(&length, 1, MPI_INT64_T, 0, set->comm);
    if (length < 0 || length > INT32_MAX - 1) return free(text), (char *)NULL;
    if (set->rank != 0) text = malloc((size_t)length + 1);
    if (agreed(set, text ? MT_OK : MT_NO_MEMORY) != MT_OK) return free(text), (char *)NULL;
    MPI_Bcast(text, (int)length + 1, MPI_CHAR, 0, set->comm);
    return text;
}

static void *allocated(mt_collection *set, size_t count, size_t size) {
    void *memory = count > SIZE_MAX / size ? NULL : malloc(count * size);
    if (memory) set->bytes += count * size;
    return memory;
}

static int allocate(mt_collection *set) {
    const size_t num_strata = (size_t)set->num_strata, num_kept = room_for(set->capacity) * num_strata;
    set->strata = allocated(set, num_strata, sizeof *set->strata);
    set->kept = allocated(set, num_kept, sizeof *set->kept);
    set->rows = allocated(set, num_kept * (size_t)set->num_columns, sizeof *set->rows);
    set->block = allocated(set, BLOCK_SAMPLES * (size_t)set->num_columns, sizeof *set->block);
    set->block_memory = allocated(set, 1, bytes_of_block_numbers(set->num_columns));
    set->columns = allocated(set, (size_t)set->num_columns, sizeof *set->columns);
    if (!set->strata || !set->kept || !set->rows || !set->block || !set->block_memory || !set->columns)
        return MT_NO_MEMORY;
    set->splits_squares = splits_squares();
    begin_anew(set);
    return MT_OK;
}

static void measure_settings(mt_collection *set) {
    const collection_settings *settings = &set->settings;
    set->num_inputs = num_values(settings->variables, settings->num_inputs);
    set->num_targets = num_values(settings->variables + settings->num_inputs, settings->num_targets);
    set->num_columns = set->num_inputs + set->num_targets;
    set->num_strata = num_strata(settings);
    set->capacity = (size_t)settings->samples / (size_t)set->num_strata;
    set->column_of_strata = -1;
    if (!settings->num_edges) return;
    const variable_settings *variable =
        find_variable(settings, settings->stratifying, settings->num_inputs + settings->num_targets);
    set->column_of_strata = num_values(settings->variables, (int)(variable - settings->variables));
}

static int open_settings(mt_collection *set, const char *settings_file) {
    char *text = shared_text(set, settings_file);
    if (!text) {
        snprintf(set->message, MESSAGE_LENGTH, "%.400s: cannot be read", settings_file);
        return MT_WRONG_SETTINGS;
    }
    const int status = agreed(set, read_settings(&set->settings, settings_file, text, set->message));
    free(text);
    if (status != MT_OK) return status;
    measure_settings(set);
    return agreed(set, allocate(set));
}
