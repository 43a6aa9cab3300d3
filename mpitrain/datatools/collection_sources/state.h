/* The state of a collection, and the agreement of its ranks on a status. */

/* `kept` and `rows` hold the samples of all strata, room_for(capacity) of each; a row is num_columns floats. */
struct mt_collection {
    MPI_Comm comm;
    int rank, num_ranks, is_open, was_shown;
    collection_settings settings;
    int num_inputs, num_targets, num_columns, num_strata;
    int column_of_strata; /* -1: strata by regions, or a single stratum */
    size_t capacity;
    stratum *strata;
    kept_sample *kept;
    float *rows, *block;
    double *block_memory;
    int splits_squares;
    column_sums *columns;
    int64_t adds_since_fold, left_out;
    size_t bytes;
    char message[MESSAGE_LENGTH];
};

static int failed(mt_collection *set, int status, const char *text) {
    snprintf(set->message, MESSAGE_LENGTH, "%s", text);
    return status;
}

/* Return the lowest status of all ranks; a rank without a failure of its own gets a message too. Collective. */
static int agreed(mt_collection *set, int status) {
    int worst = status;
    if (MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MIN, set->comm) != MPI_SUCCESS) return MT_NOT_OPEN;
    if (worst < 0 && status == MT_OK) failed(set, worst, "another rank failed");
    if (worst == MT_NO_MEMORY) failed(set, worst, "not enough memory for the samples, on at least one rank; keep fewer");
    return worst;
}

/* Return the status of rank 0, with its message, on all ranks. Collective. */
static int as_rank_0(mt_collection *set, int status) {
    MPI_Bcast(&status, 1, MPI_INT, 0, set->comm);
    if (status != MT_OK) MPI_Bcast(set->message, MESSAGE_LENGTH, MPI_CHAR, 0, set->comm);
    return status;
}

/* Discard all samples and sums. */
static void begin_anew(mt_collection *set) {
    const size_t room = room_for(set->capacity);
    for (size_t s = 0; s < (size_t)set->num_strata; ++s)
        set->strata[s] = empty_stratum(set->kept + s * room, s * room);
    for (int c = 0; c < set->num_columns; ++c) clear_sums(set->columns + c);
    set->left_out = set->adds_since_fold = 0;
}
