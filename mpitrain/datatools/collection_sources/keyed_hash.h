/* The keyed hash that orders samples: splitmix64's finaliser over keys, as in mpitrain/data/random_streams.py. */

#define STREAM_OF_COLLECTIONS UINT64_C(0x636f6c6c)

/* `first` is the hash; `step` and `cell` order samples with equal hashes, so that the order is total. */
typedef struct {
    uint64_t first, step, cell;
} sample_key;

static uint64_t mixed(uint64_t word) {
    word = (word ^ (word >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94D049BB133111EB);
    return word ^ (word >> 31);
}

static uint64_t with_key(uint64_t state, uint64_t key) { return mixed((state ^ key) + UINT64_C(0x9E3779B97F4A7C15)); }

/* Return the state of a step's random stream, from which hash_of_cell computes the hash of a cell. */
static uint64_t stream_of_step(uint64_t seed, int64_t step) {
    return with_key(with_key(with_key(0, seed), STREAM_OF_COLLECTIONS), (uint64_t)step);
}

static uint64_t hash_of_cell(uint64_t stream, int64_t cell) {
    return mixed(stream + ((uint64_t)cell + 1) * UINT64_C(0x9E3779B97F4A7C15));
}

/* Convert signed numbers to unsigned ones in the same order, and back. */
static uint64_t ordered(int64_t number) { return (uint64_t)number ^ UINT64_C(0x8000000000000000); }
static int64_t unordered(uint64_t word) { return (int64_t)(word ^ UINT64_C(0x8000000000000000)); }

static int compare_keys(const sample_key *a, const sample_key *b) {
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    return a->cell < b->cell ? -1 : a->cell > b->cell;
}
