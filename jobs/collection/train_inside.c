/* The shallow-water model of shallow_water.c trains a network while it runs: it adds all cells of 60 steps to a
 * trainer, freezes the samples, and then makes training steps after each of its own steps.
 *
 *     mpitrain data collection .
 *     mpitrain export tendency.yaml --format trainer --collection collect.yaml --output tendency.cpp
 *     mpicxx -std=c++17 -O3 -march=native -ffp-contract=off -c tendency.cpp
 *     mpicc -std=c99 -O3 -c train_inside.c mpitrain_collection.c
 *     mpicxx train_inside.o mpitrain_collection.o tendency.o -lnetcdf -lm
 *     mpirun -np 4 ./a.out collect.yaml 2 2      # 2 x 2 tiles: writes collected.nc and the run folder trained_inside
 *
 * `mpitrain train tendency.yaml` on collected.nc prints the same hash of the weights.
 */
#define WITHOUT_MAIN
#include "shallow_water.c"
#undef WITHOUT_MAIN
#include "tendency.h"

enum { STEPS_BESIDE = 8 }; /* training steps after each step of the model */

/* Add to the trainer the samples that `collect` adds to the collection. */
static int show(const tile *t, tendency_trainer *trainer, int number) {
    int64_t *cells = malloc((size_t)t->nx * sizeof *cells);
    double *inputs = malloc((size_t)t->nx * NUM_INPUTS * sizeof *inputs), *targets = malloc((size_t)t->nx * sizeof *targets);
    int status = cells && inputs && targets ? TRAINER_OK : TRAINER_NO_MEMORY;
    for (int j = 0; j < t->ny && status == TRAINER_OK; ++j) {
        fill_row(t, j, cells, inputs, targets);
        status = tendency_add_double(trainer, t->nx, cells, number, inputs, targets);
    }
    free(cells), free(inputs), free(targets);
    return status;
}

#ifndef TRAINED_BY_TEST
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, num_ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    const int tiles_x = argc > 2 ? atoi(argv[2]) : num_ranks, tiles_y = argc > 3 ? atoi(argv[3]) : 1;
    if (argc < 2 || tiles_x * tiles_y != num_ranks) {
        if (rank == 0) fprintf(stderr, "give a settings file and the numbers of tiles in x and y, one tile per rank\n");
        return MPI_Finalize(), 2;
    }
    mt_collection *set;
    tendency_trainer *trainer;
    mt_open_collection(&set, argv[1], MPI_COMM_WORLD);
    if (tendency_open(&trainer, MPI_COMM_WORLD) != TRAINER_OK && rank == 0)
        fprintf(stderr, "%s: the model runs without training\n", tendency_message(trainer));
    tile t = new_tile(MPI_COMM_WORLD, tiles_x, tiles_y);
    begin(&t);
    for (int number = 0; number < DEFAULT_STEPS; ++number) {
        step(&t);
        collect(&t, set, number);
        show(&t, trainer, number);
    }
    mt_write(set);
    int status = tendency_freeze(trainer), num_steps = 0;
    double in_model_s = 0, in_training_s = 0, loss = 0;
    while (status == TRAINER_OK) {
        const double started_s = MPI_Wtime();
        step(&t);
        const double stepped_s = MPI_Wtime();
        status = tendency_step(trainer, STEPS_BESIDE, &loss);
        in_model_s += stepped_s - started_s;
        in_training_s += MPI_Wtime() - stepped_s;
        ++num_steps;
    }
    char hash[65] = "";
    tendency_hash(trainer, hash);
    if (rank == 0 && num_steps > 0)
        printf("%.0f us a step, %.0f us training beside it; loss %g, weights SHA-256 %.12s\n",
               in_model_s / num_steps * 1e6, in_training_s / num_steps * 1e6, loss, hash);
    if (tendency_save_run(trainer, "trained_inside") != TRAINER_OK && rank == 0)
        fprintf(stderr, "%s\n", tendency_message(trainer));
    free_tile(&t);
    tendency_close(&trainer);
    mt_close(&set);
    return MPI_Finalize();
}
#endif
