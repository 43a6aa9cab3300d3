/* Collect training samples in a running MPI model: a bounded, unbiased choice of all that the model shows, as one
 * NetCDF file that `mpitrain train` reads as it is. `mpitrain help collection` describes the file of settings.
 *
 * The K samples are those with the lowest keyed hashes of (seed, step, cell): every sample has the same chance, and
 * which are kept depends on neither the number of ranks, nor the tiles, nor the order of calls, nor restarts. The
 * statistics in the file are of all samples, from sums that are exact in integers. The file is the same, bit for bit.
 *
 *     mpicc -std=c99 -O3 -c mpitrain_collection.c      # libraries: MPI and netCDF (-lnetcdf)
 *
 * Memory on each rank: 9/8 K times (F + O) floats and 32 bytes, and 5.2 kB for each of the F + O values of a sample. While
 * it writes, rank 0 takes about as much again. Nothing is allocated between mt_open_collection and mt_write. About 0.5 ns a
 * value. Calls on one collection must come from one thread at a time.
 */
#ifndef MPITRAIN_COLLECTION_H
#define MPITRAIN_COLLECTION_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What every call returns; none ends the program. Below 0 nothing was done; above 0 it was done, with a reservation. */
enum mt_status {
    MT_OK = 0,
    MT_LEFT_OUT = 1,            /* samples with a value that is no finite float were left out and counted */
    MT_SHOWN_TWICE = 2,         /* a (cell, step) came more than once, such as a halo cell; the file is written */
    MT_NO_SAMPLES = 3,          /* nothing was shown yet; no file is written */
    MT_WRONG_SETTINGS = -1,     /* the file of settings; mt_message has file, line and what is allowed */
    MT_WRONG_SHAPE = -2,        /* other numbers of inputs, targets or cells than expected, or an unknown region */
    MT_NO_MEMORY = -3,          /* memory for the samples, at least on one rank */
    MT_FILE_FAILED = -4,        /* a file cannot be read or written; what was collected is still there */
    MT_OTHER_COLLECTION = -5,   /* the restart file belongs to other settings */
    MT_NOT_OPEN = -6            /* the collection was not opened, or is closed */
};

typedef struct mt_collection mt_collection;

/* Open a collection as a file of settings describes it. Collective over `comm`, which is duplicated; `settings_file`
 * is read by rank 0. `*set` takes calls, and mt_message, after a failure too: they return MT_NOT_OPEN. */
int mt_open_collection(mt_collection **set, const char *settings_file, MPI_Comm comm);

/* Show samples of one model step. Local, sends no messages. cell_ids [num_samples] are the model's own numbers of its
 * cells or columns, the same on any decomposition; inputs [num_samples][num_inputs] and targets
 * [num_samples][num_targets] are in the order of the settings, level after level. regions [num_samples], from 0, are
 * needed where the settings stratify by `regions`, else NULL. */
int mt_add(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
           const float *inputs, int num_targets, const float *targets, const int *regions);

/* The same for double values, which are kept as float, rounded to nearest; values below 1.2e-38 become 0. */
int mt_add_double(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
                  const double *inputs, int num_targets, const double *targets, const int *regions);

/* Write the file that the settings name as `output`, under a name of its own first. Collective, the status is the same
 * on all ranks. Collecting may go on, and the file may be written again. */
int mt_write(mt_collection *set);

/* The same to another file, from which a collection with the same settings goes on, on any number of ranks: read it
 * after mt_open_collection and before the first mt_add. Collective. */
int mt_write_restart(mt_collection *set, const char *file);
int mt_read_restart(mt_collection *set, const char *file);

/* Free everything and set `*set` to NULL. Collective. */
int mt_close(mt_collection **set);

/* One line about the last status that was not MT_OK, never NULL. Local. */
const char *mt_message(const mt_collection *set);

/* Bytes that the collection holds on this rank. Local. */
size_t mt_memory_bytes(const mt_collection *set);

/* For Fortran, whose communicators are integers. */
int mt_open_collection_f(mt_collection **set, const char *settings_file, MPI_Fint comm);

#ifdef __cplusplus
}
#endif
#endif
