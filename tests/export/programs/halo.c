/* MPI for ocean.f90 in four calls: a Python package's MPI brings no Fortran module. */
#include <mpi.h>
#include <stdlib.h>

static int rank, num_ranks;

void begin(int *my_rank, int *count) {
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    *my_rank = rank;
    *count = num_ranks;
}

void exchange(int n, double *values) {
    const int before = (rank + num_ranks - 1) % num_ranks, after = (rank + 1) % num_ranks;
    MPI_Sendrecv(values + n, 1, MPI_DOUBLE, after, 0, values, 1, MPI_DOUBLE, before, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(values + 1, 1, MPI_DOUBLE, before, 1, values + n + 1, 1, MPI_DOUBLE, after, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

void gather(int n, const double *values, int total, double *all_values) {
    int *counts = (int *)malloc(2 * (size_t)num_ranks * sizeof(int)), *starts = counts + num_ranks;
    for (int r = 0; r < num_ranks; ++r) {
        starts[r] = r * total / num_ranks;
        counts[r] = (r + 1) * total / num_ranks - starts[r];
    }
    MPI_Gatherv(values, n, MPI_DOUBLE, all_values, counts, starts, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    MPI_Bcast(all_values, total, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    free(counts);
}

void finish(void) { MPI_Finalize(); }
