/* Train the network @SHAPE@ in a running MPI model, as `mpitrain train` does on the samples collected there.
 * Written by mpitrain @VERSION@ from @CONFIG@ and @COLLECTION@; needs a C++17 compiler and MPI.
 *
 *     mpicxx -std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -c @NAME@.cpp
 *
 * In a build with other flags (-Ofast and -ffast-math are refused), add for this file alone:
 *   make:  @NAME@.o: CXXFLAGS += -O3 -fno-fast-math -ffp-contract=off
 *   CMake: set_source_files_properties(@NAME@.cpp PROPERTIES COMPILE_OPTIONS "-O3;-fno-fast-math;-ffp-contract=off")
 *
 * The trainer keeps @SAMPLES@ of the samples added to it: those that a collection with the same settings keeps.
 * Statistics, held-out samples, initial weights, order and steps are those of `mpitrain train` on that collection's
 * file: the weights have the same hash, on any number of ranks and tiles, and after any restart.
 *
 * A sample has @F@ inputs and @O@ targets:
@VARIABLES@ *
 * Memory on each rank: about @BYTES@. Calls on one trainer must come from one thread at a time.
 */
#ifndef @GUARD@
#define @GUARD@

#include <mpi.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returned by every call; no call stops the program. Negative: nothing was done. Positive: done, with a notice. */
#ifndef MPITRAIN_TRAINER_STATUS
#define MPITRAIN_TRAINER_STATUS
enum mpitrain_trainer_status {
    TRAINER_OK = 0,
    TRAINER_FINISHED = 1,     /* all epochs are done, or training stopped early: no step is left */
    TRAINER_LEFT_OUT = 2,     /* samples with a value that is not a finite float were left out */
    TRAINER_SHOWN_TWICE = 3,  /* a (cell, step) was added more than once, for example a halo cell */
    TRAINER_IS_FROZEN = 4,    /* samples added after `freeze` are ignored */
    TRAINER_NO_SAMPLES = -1,  /* too few samples were added for training */
    TRAINER_WRONG_CALL = -2,  /* a call in the wrong order; see the message */
    TRAINER_NO_MEMORY = -3,
    TRAINER_FILE_FAILED = -4, /* a file cannot be read or written, or is of another trainer */
    TRAINER_WRONG_FLAGS = -5, /* compiled with flags that change results; the message has the right flags */
    TRAINER_NOT_OPEN = -6,
    TRAINER_DIVERGED = -7     /* the loss is not finite */
};
#endif

typedef struct @NAME@_trainer @NAME@_trainer;

/* Open a trainer. Collective over `comm`, which is duplicated. */
int @NAME@_open(@NAME@_trainer **trainer, MPI_Comm comm);
int @NAME@_open_f(@NAME@_trainer **trainer, MPI_Fint comm); /* for Fortran, whose communicators are integers */

/* Add samples of one model step. Local, no communication. cell_ids [count] are the model's numbers of its cells, the
 * same for any decomposition; inputs [count][@F@], targets [count][@O@]. Doubles are stored as float. */
int @NAME@_add(@NAME@_trainer *trainer, int64_t count, const int64_t *cell_ids, int64_t step, const float *inputs,
               const float *targets);
int @NAME@_add_double(@NAME@_trainer *trainer, int64_t count, const int64_t *cell_ids, int64_t step,
                      const double *inputs, const double *targets);

/* Freeze the samples kept so far, and their statistics: training uses these. Collective. */
int @NAME@_freeze(@NAME@_trainer *trainer);

/* Take up to `num_steps` training steps; `loss` (may be NULL) is set to the loss of the last one. Collective. */
int @NAME@_step(@NAME@_trainer *trainer, int64_t num_steps, double *loss);

/* Evaluate the current network in physical units: inputs [count][@F@] to outputs [count][@O@]. Local. */
int @NAME@_forward(@NAME@_trainer *trainer, int64_t count, const @REAL@ *inputs, @REAL@ *outputs);

/* Write the complete state of the trainer to one file; restore it in a new trainer, before its first samples, on any
 * number of ranks. Collective. */
int @NAME@_write_restart(@NAME@_trainer *trainer, const char *file);
int @NAME@_read_restart(@NAME@_trainer *trainer, const char *file);

/* Write a run folder for `mpitrain predict`, `export`, `report` and `train --resume`. Collective. */
int @NAME@_save_run(@NAME@_trainer *trainer, const char *folder);

/* Return the hash of the weights that a run exports, as `mpitrain train` prints it. Local. */
int @NAME@_hash(@NAME@_trainer *trainer, char text[65]);

/* Free everything and set `*trainer` to NULL. Collective. */
int @NAME@_close(@NAME@_trainer **trainer);

/* Return one line about the last status that was not TRAINER_OK; never NULL. Local. */
const char *@NAME@_message(const @NAME@_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
