/* Collect training samples in a running MPI model: a random choice of K of all samples that the model adds to it, as
 * one NetCDF file that `mpitrain train` reads directly. `mpitrain help collection` describes the settings file.
 *
 * The K samples are those with the lowest keyed hashes of (seed, step, cell): every sample has the same probability, and
 * the choice depends neither on the number of ranks, nor on the tiles, the order of calls, or restarts. The statistics
 * in the file are over all samples, from exact integer sums. The file is the same, bit for bit, in all these cases.
 *
 *     mpicc -std=c99 -O3 -c mpitrain_collection.c      # libraries: MPI and netCDF (-lnetcdf)
 *
 * Memory on each rank, for samples of F inputs and O targets: 9/8 K times (F + O floats and 32 bytes), and 5.2 kB times
 * (F + O). While writing, rank 0 needs about as much again. Nothing is allocated between mt_open_collection and mt_write.
 * Time: about 0.5 ns per value. Calls on one collection must come from one thread at a time.
 */
#ifndef MPITRAIN_COLLECTION_H
#define MPITRAIN_COLLECTION_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Status that every call returns; no call ends the program. Negative: an error, nothing was done; positive: a warning. */
enum mt_status {
    MT_OK = 0,
    MT_LEFT_OUT = 1,            /* samples with a value that is not a finite float were left out and counted */
    MT_SHOWN_TWICE = 2,         /* a (cell, step) was added more than once, such as a halo cell; the file is written */
    MT_NO_SAMPLES = 3,          /* no samples were added yet; no file is written */
    MT_WRONG_SETTINGS = -1,     /* error in the settings file; mt_message has file, line and what is allowed */
    MT_WRONG_SHAPE = -2,        /* unexpected number of inputs, targets or cells, or an unknown region */
    MT_NO_MEMORY = -3,          /* no memory for the samples on at least one rank */
    MT_FILE_FAILED = -4,        /* a file cannot be read or written; the collected samples are kept */
    MT_OTHER_COLLECTION = -5,   /* the restart file was written with other settings */
    MT_NOT_OPEN = -6            /* the collection was not opened, or is closed */
};

typedef struct mt_collection mt_collection;

/* Open a collection with the settings in a file. Collective over `comm`, which is duplicated; rank 0 reads
 * `settings_file`. After a failure `*set` is still valid for mt_message; other calls on it return MT_NOT_OPEN. */
int mt_open_collection(mt_collection **set, const char *settings_file, MPI_Comm comm);

/* Add samples of one model step. Local, sends no messages. cell_ids [num_samples] are the model's global numbers of its
 * cells or columns, the same for any decomposition; inputs [num_samples][num_inputs] and targets
 * [num_samples][num_targets] are in the order of the settings, level after level. regions [num_samples], counted from 0,
 * are required if the settings stratify by `regions`, otherwise NULL. */
int mt_add(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
           const float *inputs, int num_targets, const float *targets, const int *regions);

/* The same for double values, which are stored as float, rounded to nearest; magnitudes below 1.2e-38 become 0. */
int mt_add_double(mt_collection *set, int64_t num_samples, const int64_t *cell_ids, int64_t step, int num_inputs,
                  const double *inputs, int num_targets, const double *targets, const int *regions);

/* Write the file given as `output` in the settings, under a temporary name that is renamed at the end. Collective; the
 * status is the same on all ranks. More samples may be added later, and the file may be written again. */
int mt_write(mt_collection *set);

/* mt_write_restart writes the same file as mt_write under another name. mt_read_restart continues from it, on any
 * number of ranks with the same settings; call it after mt_open_collection and before the first mt_add. Collective. */
int mt_write_restart(mt_collection *set, const char *file);
int mt_read_restart(mt_collection *set, const char *file);

/* Free everything and set `*set` to NULL. Collective. */
int mt_close(mt_collection **set);

/* Return one line about the last status that was not MT_OK, never NULL. Local. */
const char *mt_message(const mt_collection *set);

/* Return the number of bytes that the collection has allocated on this rank. Local. */
size_t mt_memory_bytes(const mt_collection *set);

/* For Fortran, where communicators are integers. */
int mt_open_collection_f(mt_collection **set, const char *settings_file, MPI_Fint comm);

#ifdef __cplusplus
}
#endif
#endif
