/* Trains in the example model on several tiles, with and without restarts, and prints hashes and statuses by name. */
#define TRAINED_BY_TEST
#include "train_inside.c"

static MPI_Comm comm_of(int num_ranks) {
    int rank;
    MPI_Comm part;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank < num_ranks ? 0 : MPI_UNDEFINED, rank, &part);
    return part;
}

static void say(MPI_Comm comm, const char *name, const char *value) {
    int rank;
    MPI_Comm_rank(comm, &rank);
    if (rank == 0) printf("%s %s\n", name, value), fflush(stdout);
}

static void say_status(MPI_Comm comm, const char *name, int status) {
    char text[20];
    snprintf(text, sizeof text, "%d", status);
    say(comm, name, text);
}

/* Run the model up to step `last`, and add the samples of its steps from `first` on. */
static void run(MPI_Comm comm, int tiles_x, int tiles_y, tendency_trainer *trainer, mt_collection *set, int first,
                int last) {
    tile t = new_tile(comm, tiles_x, tiles_y);
    begin(&t);
    for (int number = 0; number < last; ++number) {
        step(&t);
        if (number >= first) show(&t, trainer, number);
        if (set) collect(&t, set, number);
    }
    free_tile(&t);
}

static void finish(MPI_Comm comm, tendency_trainer *trainer, const char *name, const char *folder) {
    char hash[65] = "";
    double loss = 0;
    int status;
    while ((status = tendency_step(trainer, 50, &loss)) == TRAINER_OK) continue;
    say_status(comm, "finished", status);
    tendency_hash(trainer, hash);
    say(comm, name, hash);
    say_status(comm, "save_run", tendency_save_run(trainer, folder));
}

/* Train on these tiles; on one rank collect as well. */
static void train_on(const char *folder, const char *settings, int tiles_x, int tiles_y) {
    char path[4096], name[32];
    MPI_Comm comm = comm_of(tiles_x * tiles_y);
    if (comm == MPI_COMM_NULL) return;
    mt_collection *set = NULL;
    tendency_trainer *trainer;
    if (tiles_x * tiles_y == 1) mt_open_collection(&set, settings, comm);
    tendency_open(&trainer, comm);
    run(comm, tiles_x, tiles_y, trainer, set, 0, 20);
    if (set) mt_write(set), mt_close(&set);
    tendency_freeze(trainer);
    snprintf(name, sizeof name, "tiles_%dx%d", tiles_x, tiles_y);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    finish(comm, trainer, name, path);
    tendency_close(&trainer);
    MPI_Comm_free(&comm);
}

/* Begin on 2 ranks, go on on 4 before the samples are frozen, and on 1 in the midst of an epoch. */
static void train_with_restarts(const char *folder) {
    char path[4096], run_folder[4096];
    tendency_trainer *trainer;
    double loss = 0;
    snprintf(path, sizeof path, "%s/restart", folder);
    snprintf(run_folder, sizeof run_folder, "%s/restarted", folder);
    MPI_Comm comm = comm_of(2);
    if (comm != MPI_COMM_NULL) {
        tendency_open(&trainer, comm);
        run(comm, 2, 1, trainer, NULL, 0, 9);
        say_status(comm, "restart", tendency_write_restart(trainer, path));
        tendency_close(&trainer);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    comm = comm_of(4);
    tendency_open(&trainer, comm);
    say_status(comm, "restart", tendency_read_restart(trainer, path));
    run(comm, 1, 4, trainer, NULL, 9, 20);
    tendency_freeze(trainer);
    tendency_step(trainer, 100, &loss);
    say_status(comm, "restart", tendency_write_restart(trainer, path));
    snprintf(path, sizeof path, "%s/midway", folder);
    say_status(comm, "save_run", tendency_save_run(trainer, path));
    tendency_close(&trainer);
    snprintf(path, sizeof path, "%s/restart", folder);
    comm = comm_of(1);
    if (comm == MPI_COMM_NULL) return;
    tendency_open(&trainer, comm);
    say_status(comm, "restart", tendency_read_restart(trainer, path));
    finish(comm, trainer, "restarted", run_folder);
    tendency_close(&trainer);
}

static void check_faults(const char *folder) {
    char path[4096];
    tendency_trainer *trainer;
    const double inputs[2][9] = {{1}, {NAN}}, targets[2] = {1, 2};
    const int64_t cells[2] = {1, 2};
    float x[9] = {0}, y[1];
    say_status(MPI_COMM_WORLD, "open", tendency_open(&trainer, MPI_COMM_WORLD));
    say_status(MPI_COMM_WORLD, "nothing_shown", tendency_freeze(trainer));
    say_status(MPI_COMM_WORLD, "step_unfrozen", tendency_step(trainer, 1, NULL));
    say_status(MPI_COMM_WORLD, "forward_unfrozen", tendency_forward(trainer, 1, x, y));
    snprintf(path, sizeof path, "%s/trained.c", folder);
    say_status(MPI_COMM_WORLD, "no_restart", tendency_read_restart(trainer, path));
    say_status(MPI_COMM_WORLD, "not_a_number", tendency_add_double(trainer, 2, cells, 0, inputs[0], targets));
    say_status(MPI_COMM_WORLD, "too_few", tendency_freeze(trainer));
    say(MPI_COMM_WORLD, "message", tendency_message(trainer));
    snprintf(path, sizeof path, "%s/nowhere/restart", folder);
    say_status(MPI_COMM_WORLD, "no_folder", tendency_write_restart(trainer, path));
    say(MPI_COMM_WORLD, "message", tendency_message(trainer));
    say_status(MPI_COMM_WORLD, "closed", tendency_close(&trainer));
    say_status(MPI_COMM_WORLD, "add_closed", tendency_add_double(trainer, 1, cells, 0, inputs[0], targets));
}

int main(int argc, char **argv) {
    static const int tiles[][2] = {{1, 1}, {2, 1}, {1, 3}, {2, 2}, {4, 1}};
    MPI_Init(&argc, &argv);
    for (int i = 0; i < 5; ++i) train_on(argv[1], argv[2], tiles[i][0], tiles[i][1]), MPI_Barrier(MPI_COMM_WORLD);
    train_with_restarts(argv[1]);
    MPI_Barrier(MPI_COMM_WORLD);
    check_faults(argv[1]);
    return MPI_Finalize();
}
