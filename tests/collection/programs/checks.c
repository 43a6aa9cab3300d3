/* Checks of collecting in one launch on 4 ranks; `test_collection_in_a_model.py` reads the lines and the files.
 *
 *     mpirun -np 4 checks FOLDER      # FOLDER holds collect.yaml and the other files of settings
 */
#include "mpitrain_collection.c"

#include <signal.h>
#include <sys/resource.h>

#define WITHOUT_MAIN
#include "shallow_water.c"

enum { HALF = 10, LAST = 20, NUM_SEEDS = 1000, NUM_SHOWN = 64, NUM_KEPT = 16 };

static int world_rank;
static const char *folder;

static const char *path_of(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

static void say(const char *what, int status) {
    if (world_rank == 0) printf("%s %d\n", what, status), fflush(stdout);
}

static mt_collection *opened(const char *settings, MPI_Comm comm) {
    mt_collection *set;
    if (mt_open_collection(&set, path_of(settings), comm) != MT_OK) printf("not opened: %s\n", mt_message(set));
    return set;
}

/* The first `num_ranks` ranks, MPI_COMM_NULL on the others. */
static MPI_Comm first_ranks(int num_ranks) {
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank < num_ranks ? 0 : MPI_UNDEFINED, world_rank, &comm);
    return comm;
}

/* Run the model on tiles and collect the steps [first, last), from a restart file and to one where they are named. */
static void run_model(int tiles_x, int tiles_y, int first, int last, const char *from, const char *to) {
    MPI_Comm comm = first_ranks(tiles_x * tiles_y);
    if (comm == MPI_COMM_NULL) return;
    mt_collection *set = opened("collect.yaml", comm);
    if (from) say("read_restart", mt_read_restart(set, path_of(from)));
    tile t = new_tile(comm, tiles_x, tiles_y);
    begin(&t);
    for (int number = 0; number < last; ++number) {
        step(&t);
        if (number >= first) collect(&t, set, number);
        if (first == 0 && number == HALF) mt_write_restart(set, path_of("between.nc")); /* collecting goes on after it */
    }
    say("write", mt_write_restart(set, path_of(to)));
    free_tile(&t);
    mt_close(&set);
    MPI_Comm_free(&comm);
}

static void check_decompositions(void) {
    run_model(1, 1, 0, LAST, NULL, "tiles_1x1.nc");
    run_model(2, 1, 0, LAST, NULL, "tiles_2x1.nc");
    run_model(1, 3, 0, LAST, NULL, "tiles_1x3.nc");
    run_model(2, 2, 0, LAST, NULL, "tiles_2x2.nc");
    run_model(4, 1, 0, LAST, NULL, "tiles_4x1.nc");
    run_model(2, 1, 0, HALF, NULL, "half_of_2.nc");
    run_model(3, 1, HALF, LAST, "half_of_2.nc", "restarted_on_3.nc");
    run_model(2, 2, 0, HALF, NULL, "half_of_4.nc");
    run_model(1, 1, HALF, LAST, "half_of_4.nc", "restarted_on_1.nc");
}

/* Samples of two inputs and a target, dealt to the ranks of the world; `order` turns the order of calls around. */
static int show_few(mt_collection *set, int num_samples, int order) {
    int rank, num_ranks, worst = 0;
    MPI_Comm_rank(set->comm, &rank);
    MPI_Comm_size(set->comm, &num_ranks);
    for (int i = 0; i < num_samples; ++i) {
        const int64_t cell = order ? num_samples - 1 - i : i;
        const float inputs[2] = {(float)cell, (float)(cell % 7) - 3.0f}, targets[1] = {0.1f * (float)cell};
        const int region = (int)(cell % 3);
        if (cell % num_ranks != rank) continue;
        const int status = mt_add(set, 1, &cell, cell / 10, 2, inputs, 1, targets, &region);
        if (status != 0) worst = status;
    }
    return worst;
}

static void check_strata(void) {
    for (int order = 0; order < 2; ++order) {
        mt_collection *bins = opened("bins.yaml", MPI_COMM_WORLD), *regions = opened("regions.yaml", MPI_COMM_WORLD);
        say("bins_add", show_few(bins, 1000, order));
        say("regions_add", show_few(regions, 1000, order));
        say("bins_write", mt_write_restart(bins, path_of(order ? "bins_turned.nc" : "bins.nc")));
        say("regions_write", mt_write_restart(regions, path_of(order ? "regions_turned.nc" : "regions.nc")));
        mt_close(&bins);
        mt_close(&regions);
    }
}

/* Values of all sizes, more than are added before sums are folded; all of them are kept, so that the test can add. */
static void check_sums(void) {
    mt_collection *set = opened("all.yaml", MPI_COMM_WORLD);
    for (int64_t i = world_rank; i < 140000; i += 4) {
        const uint32_t word = (uint32_t)hash_of_cell(7, i);
        const uint32_t bits = (word & 0x7f800000u) == 0x7f800000u ? word & 0xbfffffffu : word;
        float inputs[2], targets[1] = {100.0f + (float)(i % 10) * 1e-3f};
        memcpy(inputs, &bits, sizeof bits);
        inputs[1] = i == 5 ? 1e-45f : i == 6 ? -0.0f : 3.0e38f;
        mt_add(set, 1, &i, 0, 2, inputs, 1, targets, NULL);
    }
    say("sums_write", mt_write(set));
    mt_close(&set);
}

/* Faults: each a status, after which the collection goes on. */
static void check_faults(void) {
    mt_collection *set = opened("few.yaml", MPI_COMM_WORLD), *other = NULL;
    const int64_t cells[3] = {1000, 1001, 1002};
    float inputs[6] = {1, 2, 3, 4, 5, 6}, targets[3] = {1, 2, 3};
    const double large[2] = {1.0, 1e300}, small[1] = {1.0};
    const uint32_t no_number = 0x7fc00000u;
    say("nothing_shown", mt_write_restart(set, path_of("nothing.nc")));
    show_few(set, 100, 0);
    memcpy(inputs + 2, &no_number, sizeof no_number);
    say("not_a_number", mt_add(set, world_rank == 0 ? 3 : 0, cells, 1, 2, inputs, 1, targets, NULL));
    say("beyond_float", mt_add_double(set, world_rank == 0, cells, 2, 2, large, 1, small, NULL));
    say("wrong_inputs", mt_add(set, 3, cells, 1, 3, inputs, 1, targets, NULL));
    say("wrong_targets", mt_add(set, 3, cells, 1, 2, inputs, 2, targets, NULL));
    say("no_settings", mt_open_collection(&other, path_of("missing.yaml"), MPI_COMM_WORLD));
    say("add_unopened", mt_add(other, 3, cells, 1, 2, inputs, 1, targets, NULL));
    say("write_unopened", mt_write(other));
    mt_close(&other);
    say("wrong_settings", mt_open_collection(&other, path_of("wrong.yaml"), MPI_COMM_WORLD));
    if (world_rank == 0) printf("message %s\n", mt_message(other));
    mt_close(&other);
    say("too_large", mt_open_collection(&other, path_of("too_large.yaml"), MPI_COMM_WORLD));
    mt_close(&other);
    other = opened("regions.yaml", MPI_COMM_WORLD);
    say("no_regions", mt_add(other, 1, cells, 1, 2, inputs, 1, targets, NULL));
    say("other_settings", mt_read_restart(other, path_of("bins.nc")));
    say("same_settings", mt_read_restart(other, path_of("regions.nc")));
    say("read_again", mt_read_restart(other, path_of("regions.nc")));
    mt_close(&other);
    other = opened("regions.yaml", MPI_COMM_WORLD);
    say("no_restart", mt_read_restart(other, path_of("missing.nc")));
    mt_close(&other);
    const struct rlimit little = {2048, RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little);
    say("full_disk", mt_write(set));
    setrlimit(RLIMIT_FSIZE, &any);
    if (world_rank == 0) printf("message %s\n", mt_message(set));
    say("after_full_disk", mt_write(set));
    other = opened("few.yaml", MPI_COMM_WORLD);
    say("read_few", mt_read_restart(other, path_of("few.nc")));
    mt_write_restart(other, path_of("few_again.nc"));
    mt_close(&other);
    show_few(set, 3, 0);
    say("shown_twice", mt_write_restart(set, path_of("twice.nc")));
    show_few(set, 300, 0); /* more than are kept: two equal keys may lie at the border */
    show_few(set, 300, 0);
    say("twice_at_the_border", mt_write_restart(set, path_of("border.nc")));
    mt_close(&set);
    say("closed", mt_write(set));
}

/* Every sample must be kept as often as any other: the chi-square of 1,000 seeds, 63 degrees of freedom. */
static void check_unbiased(void) {
    int kept[NUM_SHOWN] = {0};
    mt_collection *set = opened("few.yaml", MPI_COMM_SELF);
    set->capacity = NUM_KEPT;
    for (int seed = 0; seed < NUM_SEEDS; ++seed) {
        begin_anew(set);
        set->settings.seed = (uint64_t)seed;
        show_few(set, NUM_SHOWN, seed % 2);
        leave_lowest(set->strata, NUM_KEPT);
        for (int i = 0; i < NUM_KEPT; ++i) ++kept[unordered(set->strata[0].kept[i].key.cell)];
    }
    mt_close(&set);
    const double expected = (double)NUM_SEEDS * NUM_KEPT / NUM_SHOWN;
    double chi_square = 0;
    for (int i = 0; i < NUM_SHOWN; ++i) chi_square += (kept[i] - expected) * (kept[i] - expected) / expected;
    /* a cell is kept or not: the variance of its count is that of a binomial, without replacement */
    chi_square *= (NUM_SHOWN - 1.0) / (NUM_SHOWN - NUM_KEPT);
    if (world_rank == 0) printf("chi_square %.3f\n", chi_square);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    folder = argc > 1 ? argv[1] : ".";
    check_decompositions();
    check_strata();
    check_sums();
    check_faults();
    check_unbiased();
    return MPI_Finalize();
}
