/* MPI for `fortran_caller.f90`: the MPI library need not have been built for this Fortran compiler. */
#include <mpi.h>

void collect_in_fortran(int comm, int rank, int num_ranks);

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, num_ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    collect_in_fortran((int)MPI_Comm_c2f(MPI_COMM_WORLD), rank, num_ranks);
    return MPI_Finalize();
}
