// Freezes and trains while memory fails on one rank: at each of the first places where it is asked for, then at ever
// fewer of the many others, which are one loop's. Prints how many places there are, and the hash in the end.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include "tendency.h"

static long calls_until_failure = -1;

void *operator new(std::size_t size) {
    if (calls_until_failure >= 0 && calls_until_failure-- == 0) throw std::bad_alloc();
    if (void *memory = std::malloc(size ? size : 1)) return memory;
    throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

/// Calls until memory has sufficed, on the rank where it fails; returns about how often it is asked for.
template <class Call>
static int failures_of(int rank, const Call &call) {
    for (int number = 0;; number += 1 + number / 16) {
        calls_until_failure = rank == 1 ? number : -1;
        const int status = call();
        const bool has_failed = rank != 1 || calls_until_failure < 0;
        calls_until_failure = -1;
        int all_know = 0, knows = status == TRAINER_NO_MEMORY;
        MPI_Allreduce(&knows, &all_know, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (all_know == 0) return number;
        if (all_know != 2 || !has_failed) std::printf("parted %d of 2 at %d\n", all_know, number), std::fflush(stdout);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    tendency_trainer *trainer;
    tendency_open(&trainer, MPI_COMM_WORLD);
    for (int64_t cell = rank; cell < 6000; cell += 2) {
        double inputs[9], target = 0;
        for (int i = 0; i < 9; ++i) target += inputs[i] = double((cell * (2 * i + 3)) % 101) / 50 - 1;
        tendency_add_double(trainer, 1, &cell, 0, inputs, &target);
    }
    const int in_restart = failures_of(rank, [&] { return tendency_write_restart(trainer, "unfrozen"); });
    const int in_freeze = failures_of(rank, [&] { return tendency_freeze(trainer); });
    int in_steps = 0, status = TRAINER_OK;
    while (status == TRAINER_OK)
        in_steps += failures_of(rank, [&] { return status = tendency_step(trainer, 40, nullptr); });
    const int in_frozen = failures_of(rank, [&] { return tendency_write_restart(trainer, "frozen"); });
    char hash[65] = "";
    tendency_hash(trainer, hash);
    tendency_close(&trainer);
    tendency_open(&trainer, MPI_COMM_WORLD);
    const int in_reading = failures_of(rank, [&] { return tendency_read_restart(trainer, "frozen"); });
    char again[65] = "";
    tendency_hash(trainer, again);
    if (rank == 0)
        std::printf("failures %d %d %d %d %d\nhash %s\nhash %s\n", in_restart, in_freeze, in_steps, in_frozen, in_reading,
                    hash, again);
    tendency_close(&trainer);
    MPI_Finalize();
}
