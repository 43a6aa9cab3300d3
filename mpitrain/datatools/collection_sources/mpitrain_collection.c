/* See mpitrain_collection.h. Written by `mpitrain data collection`; needs MPI and netCDF. */
#define _POSIX_C_SOURCE 200809L
#include "mpitrain_collection.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <netcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "build_options.h"
#include "settings.h"
#include "keyed_hash.h"
#include "exact_sums.h"
#include "block_sums.h"
#include "lowest.h"
#include "collected_file.h"
#include "state.h"
#include "opening.h"
#include "values.h"
#include "showing.h"
#include "writing.h"
#include "reading.h"

int mt_open_collection(mt_collection **set, const char *settings_file, MPI_Comm comm) {
    mt_collection *one = *set = calloc(1, sizeof **set);
    int has_memory = one != NULL, all_have = 0;
    if (MPI_Allreduce(&has_memory, &all_have, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS || !all_have)
        return free(one), *set = NULL, MT_NO_MEMORY;
    one->bytes = sizeof *one;
    if (MPI_Comm_dup(comm, &one->comm) != MPI_SUCCESS) return one->comm = MPI_COMM_NULL, MT_NOT_OPEN;
    MPI_Comm_set_errhandler(one->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(one->comm, &one->rank);
    MPI_Comm_size(one->comm, &one->num_ranks);
    const int status = open_settings(one, settings_file ? settings_file : "");
    one->is_open = status == MT_OK;
    return status;
}

int mt_open_collection_f(mt_collection **set, const char *settings_file, MPI_Fint comm) {
    return mt_open_collection(set, settings_file, MPI_Comm_f2c(comm));
}

int mt_close(mt_collection **set) {
    mt_collection *one = *set;
    *set = NULL;
    if (!one) return MT_NOT_OPEN;
    if (one->comm != MPI_COMM_NULL) MPI_Comm_free(&one->comm);
    free(one->settings.variables);
    free(one->strata);
    free(one->kept);
    free(one->rows);
    free(one->block);
    free(one->block_memory);
    free(one->columns);
    free(one);
    return MT_OK;
}

int mt_add(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
           const float *inputs, int num_targets, const float *targets, const int *regions) {
    const int status = check_shapes(set, num_samples, cell_ids && inputs && targets, num_inputs, num_targets, regions);
    const values_view from = {inputs, NULL}, to = {targets, NULL};
    return status == MT_OK ? add(set, num_samples, cell_ids, step, from, to, regions) : status;
}

int mt_add_double(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
                  const double *inputs, int num_targets, const double *targets, const int *regions) {
    const int status = check_shapes(set, num_samples, cell_ids && inputs && targets, num_inputs, num_targets, regions);
    const values_view from = {NULL, inputs}, to = {NULL, targets};
    return status == MT_OK ? add(set, num_samples, cell_ids, step, from, to, regions) : status;
}

int mt_write_restart(mt_collection *set, const char *path) {
    if (!set || !set->is_open) return MT_NOT_OPEN;
    column_sums *columns = malloc((size_t)set->num_columns * sizeof *columns);
    int64_t *counts = malloc(2 * CANDIDATES * (size_t)set->num_strata * sizeof *counts);
    int status = agreed(set, counts && columns ? MT_OK : MT_NO_MEMORY);
    if (status == MT_OK) status = write_with(set, path ? path : "", columns, counts);
    free(columns);
    free(counts);
    return status;
}

int mt_write(mt_collection *set) { return mt_write_restart(set, set && set->is_open ? set->settings.output : ""); }

int mt_read_restart(mt_collection *set, const char *path) {
    if (!set || !set->is_open) return MT_NOT_OPEN;
    if (agreed(set, set->was_shown ? MT_WRONG_SHAPE : MT_OK) != MT_OK)
        return failed(set, MT_WRONG_SHAPE, "call mt_read_restart once, before the first mt_add on any rank");
    const int status = as_rank_0(set, set->rank == 0 ? read_on_rank_0(set, path ? path : "") : MT_OK);
    if (status != MT_OK) begin_anew(set); /* it may contain a part of the file */
    set->was_shown = status == MT_OK;
    return status;
}

const char *mt_message(const mt_collection *set) { return set ? set->message : "the collection is not open"; }

size_t mt_memory_bytes(const mt_collection *set) { return set ? set->bytes : 0; }
