/* `restarts SETTINGS write|read|null FILE`: write a restart file of ten samples, or read one, or add a null pointer; print the status and why. */
#include <stdio.h>
#include <string.h>

#include "mpitrain_collection.c"

int main(int argc, char **argv) {
    mt_collection *set;
    if (argc != 4) return 2;
    MPI_Init(&argc, &argv);
    int status = mt_open_collection(&set, argv[1], MPI_COMM_WORLD);
    for (int64_t cell = 0; cell < 10 && status == MT_OK && !strcmp(argv[2], "write"); ++cell) {
        const float inputs[2] = {(float)cell, 1}, target = 2;
        status = mt_add(set, 1, &cell, 0, 2, inputs, 1, &target, NULL);
    }
    if (!strcmp(argv[2], "null")) status = mt_add(set, 1, (int64_t[]){1}, 0, 2, NULL, 1, (float[]){1}, NULL);
    if (status == MT_OK) status = strcmp(argv[2], "write") ? mt_read_restart(set, argv[3]) : mt_write_restart(set, argv[3]);
    printf("%d %s\n", status, mt_message(set));
    mt_close(&set);
    MPI_Finalize();
    return 0;
}
