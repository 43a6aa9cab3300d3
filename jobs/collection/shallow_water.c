/* A small shallow-water model on tiles, 1-D or 2-D, that collects training samples while it runs.
 *
 *     mpitrain data collection . && mpicc -std=c99 -O3 shallow_water.c mpitrain_collection.c -lnetcdf -lm
 *     mpirun -np 4 ./a.out collect.yaml 2 2      # 2 x 2 tiles: writes collected.nc
 *     mpitrain train collected.nc
 *
 * Each cell is computed from itself and its neighbours in a fixed order: its bits are the same on any tiles.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpitrain_collection.h"

enum { NX = 96, NY = 64, NUM_INPUTS = 9, NUM_TARGETS = 1, DEFAULT_STEPS = 60 };
static const double spacing_m = 1e4, time_step_s = 60.0, gravity = 9.81, coriolis = 1e-4;

/* A rank's tile: columns [x, x + nx) and rows [y, y + ny) of the periodic grid, with a halo of one cell. */
typedef struct {
    MPI_Comm comm;
    int tiles_x, tiles_y, x, y, nx, ny, west, east, south, north;
    double *depth, *u, *v, *next_depth, *next_u, *next_v;
} tile;

static size_t at(const tile *t, int i, int j) { return (size_t)(j + 1) * (size_t)(t->nx + 2) + (size_t)(i + 1); }

static int first_of(int length, int parts, int part) { return (int)((long)length * part / parts); }

static double *new_field(const tile *t) { return calloc((size_t)(t->nx + 2) * (size_t)(t->ny + 2), sizeof(double)); }

static tile new_tile(MPI_Comm comm, int tiles_x, int tiles_y) {
    int rank;
    MPI_Comm_rank(comm, &rank);
    const int i = rank % tiles_x, j = rank / tiles_x;
    tile t = {.comm = comm, .tiles_x = tiles_x, .tiles_y = tiles_y};
    t.x = first_of(NX, tiles_x, i), t.nx = first_of(NX, tiles_x, i + 1) - t.x;
    t.y = first_of(NY, tiles_y, j), t.ny = first_of(NY, tiles_y, j + 1) - t.y;
    t.west = j * tiles_x + (i + tiles_x - 1) % tiles_x, t.east = j * tiles_x + (i + 1) % tiles_x;
    t.south = (j + tiles_y - 1) % tiles_y * tiles_x + i, t.north = (j + 1) % tiles_y * tiles_x + i;
    t.depth = new_field(&t), t.u = new_field(&t), t.v = new_field(&t);
    t.next_depth = new_field(&t), t.next_u = new_field(&t), t.next_v = new_field(&t);
    return t;
}

static void free_tile(tile *t) {
    free(t->depth), free(t->u), free(t->v);
    free(t->next_depth), free(t->next_u), free(t->next_v);
}

/* Fill the halo of the tile from its neighbours, first in x, then in y. */
static void exchange(const tile *t, double *field) {
    MPI_Datatype column;
    MPI_Type_vector(t->ny, 1, t->nx + 2, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    MPI_Sendrecv(field + at(t, 0, 0), 1, column, t->west, 1, field + at(t, t->nx, 0), 1, column, t->east, 1, t->comm,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(field + at(t, t->nx - 1, 0), 1, column, t->east, 2, field + at(t, -1, 0), 1, column, t->west, 2,
                 t->comm, MPI_STATUS_IGNORE);
    MPI_Type_free(&column);
    MPI_Sendrecv(field + at(t, 0, 0), t->nx, MPI_DOUBLE, t->south, 3, field + at(t, 0, t->ny), t->nx, MPI_DOUBLE,
                 t->north, 3, t->comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(field + at(t, 0, t->ny - 1), t->nx, MPI_DOUBLE, t->north, 4, field + at(t, 0, -1), t->nx, MPI_DOUBLE,
                 t->south, 4, t->comm, MPI_STATUS_IGNORE);
}

/* Set the initial state: a basin 100 m deep with waves of several lengths. */
static void begin(tile *t) {
    const double turn = 6.283185307179586;
    for (int j = 0; j < t->ny; ++j)
        for (int i = 0; i < t->nx; ++i) {
            const double x = turn * (t->x + i) / NX, y = turn * (t->y + j) / NY;
            t->depth[at(t, i, j)] = 100.0 + 2.0 * sin(x) * cos(2.0 * y) + 0.5 * cos(5.0 * x + 3.0 * y);
            t->u[at(t, i, j)] = 0.2 * sin(2.0 * y), t->v[at(t, i, j)] = 0.1 * cos(x);
        }
    exchange(t, t->u);
    exchange(t, t->v);
}

static void swap(double **a, double **b) {
    double *kept = *a;
    *a = *b;
    *b = kept;
}

/* Make one step: first the velocities, then the depth from the new velocities (forward-backward scheme). */
static void step(tile *t) {
    const double c = 0.5 * time_step_s / spacing_m;
    exchange(t, t->depth);
    for (int j = 0; j < t->ny; ++j)
        for (int i = 0; i < t->nx; ++i) {
            const size_t k = at(t, i, j);
            const double slope_x = t->depth[at(t, i + 1, j)] - t->depth[at(t, i - 1, j)];
            const double slope_y = t->depth[at(t, i, j + 1)] - t->depth[at(t, i, j - 1)];
            t->next_u[k] = t->u[k] + time_step_s * coriolis * t->v[k] - gravity * c * slope_x;
            t->next_v[k] = t->v[k] - time_step_s * coriolis * t->u[k] - gravity * c * slope_y;
        }
    exchange(t, t->next_u);
    exchange(t, t->next_v);
    for (int j = 0; j < t->ny; ++j)
        for (int i = 0; i < t->nx; ++i) {
            const size_t e = at(t, i + 1, j), w = at(t, i - 1, j), n = at(t, i, j + 1), s = at(t, i, j - 1);
            const double out_x = t->depth[e] * t->next_u[e] - t->depth[w] * t->next_u[w];
            const double out_y = t->depth[n] * t->next_v[n] - t->depth[s] * t->next_v[s];
            t->next_depth[at(t, i, j)] = t->depth[at(t, i, j)] - c * (out_x + out_y);
        }
    swap(&t->depth, &t->next_depth), swap(&t->u, &t->next_u), swap(&t->v, &t->next_v);
}

/* Write the samples of row j of the last step. The state before that step is in the `next_` fields. */
static void fill_row(const tile *t, int j, int64_t *cells, double *inputs, double *targets) {
    for (int i = 0; i < t->nx; ++i) {
        const size_t k = at(t, i, j);
        double *one = inputs + i * NUM_INPUTS;
        cells[i] = (int64_t)(t->y + j) * NX + t->x + i;
        one[0] = t->next_depth[k];
        one[1] = t->next_depth[at(t, i - 1, j)], one[2] = t->next_depth[at(t, i + 1, j)];
        one[3] = t->next_depth[at(t, i, j - 1)], one[4] = t->next_depth[at(t, i, j + 1)];
        one[5] = t->next_u[at(t, i - 1, j)], one[6] = t->next_u[at(t, i + 1, j)];
        one[7] = t->next_v[at(t, i, j - 1)], one[8] = t->next_v[at(t, i, j + 1)];
        targets[i] = (t->depth[k] - t->next_depth[k]) / time_step_s;
    }
}

/* Add all cells of the last step to the collection, row by row. */
static int collect(const tile *t, mt_collection *set, int number) {
    int64_t *cells = malloc((size_t)t->nx * sizeof *cells);
    double *inputs = malloc((size_t)t->nx * NUM_INPUTS * sizeof *inputs), *targets = malloc((size_t)t->nx * sizeof *targets);
    int status = cells && inputs && targets ? MT_OK : MT_NO_MEMORY;
    for (int j = 0; j < t->ny && status == MT_OK; ++j) {
        fill_row(t, j, cells, inputs, targets);
        status = mt_add_double(set, t->nx, cells, number, NUM_INPUTS, inputs, NUM_TARGETS, targets, NULL);
    }
    free(cells), free(inputs), free(targets);
    return status;
}

#ifndef WITHOUT_MAIN
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
    if (mt_open_collection(&set, argv[1], MPI_COMM_WORLD) != MT_OK && rank == 0)
        fprintf(stderr, "%s: the model runs without collecting\n", mt_message(set));
    tile t = new_tile(MPI_COMM_WORLD, tiles_x, tiles_y);
    begin(&t);
    double in_model_s = 0, in_collection_s = 0;
    for (int number = 0; number < DEFAULT_STEPS; ++number) {
        const double started_s = MPI_Wtime();
        step(&t);
        const double stepped_s = MPI_Wtime();
        collect(&t, set, number);
        in_model_s += stepped_s - started_s;
        in_collection_s += MPI_Wtime() - stepped_s;
    }
    if (rank == 0)
        printf("%.0f us a step, %.0f us collecting\n", in_model_s / DEFAULT_STEPS * 1e6,
               in_collection_s / DEFAULT_STEPS * 1e6);
    if (mt_write(set) != MT_OK && rank == 0) fprintf(stderr, "%s\n", mt_message(set));
    free_tile(&t);
    mt_close(&set);
    return MPI_Finalize();
}
#endif
