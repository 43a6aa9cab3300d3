/* `restarts write|read|null FILE`: train and write a restart file, read one and go on, or add a null pointer; print statuses. */
#include <stdio.h>
#include <string.h>

#include "small.h"

int main(int argc, char **argv) {
    small_trainer *trainer;
    double loss = 0;
    if (argc != 3) return 2;
    MPI_Init(&argc, &argv);
    int status = small_open(&trainer, MPI_COMM_WORLD);
    if (!strcmp(argv[1], "write")) {
        for (int64_t cell = 0; cell < 100 && status == TRAINER_OK; ++cell) {
            float inputs[9] = {0}, target = (float)(cell % 7);
            for (int i = 0; i < 9; ++i) inputs[i] = (float)(cell % (i + 3));
            status = small_add(trainer, 1, &cell, 0, inputs, &target);
        }
        if (status == TRAINER_OK) status = small_freeze(trainer);
        if (status == TRAINER_OK) status = small_step(trainer, 4, &loss);
        if (status == TRAINER_OK) status = small_write_restart(trainer, argv[2]);
    } else if (!strcmp(argv[1], "null")) {
        status = small_add(trainer, 1, (int64_t[]){1}, 0, NULL, (float[]){1});
    } else {
        if (status == TRAINER_OK) status = small_read_restart(trainer, argv[2]);
        if (status == TRAINER_OK) status = small_step(trainer, 3, &loss);
        if (status == TRAINER_OK) status = small_save_run(trainer, "saved");
    }
    printf("%d %s\n", status, small_message(trainer));
    small_close(&trainer);
    MPI_Finalize();
    return 0;
}
