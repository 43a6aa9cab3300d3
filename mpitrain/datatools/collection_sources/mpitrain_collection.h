/* Collect training samples in a running MPI model: a bounded, unbiased selection of all samples that the model passes,
 * in one NetCDF file that `mpitrain train` reads directly. `mpitrain help collection` describes the file of settings.
 *
 * The K samples kept are those with the lowest keyed hashes of (seed, step, cell). Each sample has the same
 * probability; the selection does not depend on the number of ranks, the tiles, the order of calls, or restarts. The
 * statistics in the file cover all samples, and are computed from exact integer sums. The file is therefore the same,
 * bit for bit.
 *
 *     mpicc -std=c99 -O3 -c mpitrain_collection.c      # libraries: MPI and netCDF (-lnetcdf)
 *
 * Memory on each rank: 9/8 K times (F + O floats and 32 bytes), and 5.2 kB for each of the F + O values of a sample.
 * Rank 0 needs about the same amount again while it writes. Nothing is allocated between mt_open_collection and
 * mt_write. Time: about 0.5 ns per value. Calls on one collection must come from one thread at a time.
 */
#ifndef MPITRAIN_COLLECTION_H
#define MPITRAIN_COLLECTION_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returned by every call; no call stops the program. Negative: nothing was done. Positive: done, with a notice. */
enum mt_status {
    MT_OK = 0,
    MT_LEFT_OUT = 1,            /* samples with a value that is not a finite float were left out and counted */
    MT_SHOWN_TWICE = 2,         /* a (cell, step) was passed twice, for example a halo cell; the file is written */
    MT_NO_SAMPLES = 3,          /* no sample was passed yet; no file is written */
    MT_WRONG_SETTINGS = -1,     /* an error in the settings; mt_message has file, line and allowed values */
    MT_WRONG_SHAPE = -2,        /* wrong numbers of inputs, targets or cells, or an unknown region */
    MT_NO_MEMORY = -3,          /* not enough memory for the samples, on at least one rank */
    MT_FILE_FAILED = -4,        /* a file cannot be read or written; the collected samples are kept */
    MT_OTHER_COLLECTION = -5,   /* the restart file belongs to other settings */
    MT_NOT_OPEN = -6            /* the collection was not opened, or is closed */
};

typedef struct mt_collection mt_collection;

/* Open the collection that a file of settings describes. Collective over `comm`, which is duplicated; rank 0 reads
 * `settings_file`. After a failure `*set` is still valid: mt_message returns the reason, mt_add returns MT_NOT_OPEN. */
int mt_open_collection(mt_collection **set, const char *settings_file, MPI_Comm comm);

/* Pass samples of one model step. Local, no communication. cell_ids [num_samples] are the model's numbers of its cells
 * or columns, the same for any decomposition; inputs [num_samples][num_inputs] and targets [num_samples][num_targets]
 * are in the order of the settings, level after level. regions [num_samples], from 0, are required if the settings
 * stratify by `regions`, otherwise NULL. */
int mt_add(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
           const float *inputs, int num_targets, const float *targets, const int *regions);

/* The same for double values, which are stored as float, rounded to nearest; magnitudes below 1.2e-38 become 0. */
int mt_add_double(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
                  const double *inputs, int num_targets, const double *targets, const int *regions);

/* Write the file `output` of the settings, first under a temporary name. Collective; all ranks return the same status.
 * More samples may be passed afterwards, and the file may be written again. */
int mt_write(mt_collection *set);

/* Write the same content to another file, or restore the state of a collection with the same settings from it, on any
 * number of ranks, after mt_open_collection and before the first mt_add. Collective. */
int mt_write_restart(mt_collection *set, const char *file);
int mt_read_restart(mt_collection *set, const char *file);

/* Free everything and set `*set` to NULL. Collective. */
int mt_close(mt_collection **set);

/* Return one line about the last status that was not MT_OK; never NULL. Local. */
const char *mt_message(const mt_collection *set);

/* Return the bytes allocated by the collection on this rank. Local. */
size_t mt_memory_bytes(const mt_collection *set);

/* For Fortran, whose communicators are integers. */
int mt_open_collection_f(mt_collection **set, const char *settings_file, MPI_Fint comm);

#ifdef __cplusplus
}
#endif
#endif
