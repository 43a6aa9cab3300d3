/* The samples with the lowest keys on this rank: for each stratum as many as are to be kept, and some more. */

enum { CANDIDATES = 15, HASH_BINS = 1024 }; /* CANDIDATES: non-zero values of a hexadecimal digit */

typedef struct {
    sample_key key;
    size_t row;
} kept_sample;

/* kept[0 .. count) may be among the lowest; kept[count .. num_named) contain the numbers of free rows. No sample with a
 * key above `limit` can be among the lowest of all ranks; `shown` counts all samples of the stratum. */
typedef struct {
    kept_sample *kept;
    size_t count, num_named, first_row;
    sample_key limit;
    int64_t shown;
} stratum;

/* Return the room for samples, more than the `capacity` lowest: the more room, the less often samples are discarded. */
static size_t room_for(size_t capacity) { return capacity + capacity / 8 + 16; }

/* Return an empty stratum; `kept` has room for room_for(capacity) samples. */
static stratum empty_stratum(kept_sample *kept, size_t first_row) {
    const stratum empty = {kept, 0, 0, first_row, {UINT64_MAX, UINT64_MAX, UINT64_MAX}, 0};
    return empty;
}

static int falling(const void *a, const void *b) {
    return compare_keys(&((const kept_sample *)b)->key, &((const kept_sample *)a)->key);
}

static void swap_samples(kept_sample *one, kept_sample *other) {
    const kept_sample kept = *one;
    *one = *other;
    *other = kept;
}

/* Move samples with hashes >> shift below `bin` before the others. */
static void part_at_bin(kept_sample *kept, size_t count, int shift, uint64_t bin) {
    size_t first = 0, last = count;
    for (;;) {
        while (first < last && kept[first].key.first >> shift < bin) ++first;
        while (first < last && kept[last - 1].key.first >> shift >= bin) --last;
        if (first == last) return;
        swap_samples(kept + first++, kept + --last);
    }
}

/* Move the sample of rank `place` in the order of keys to that position, and all lower ones before it: Hoare's FIND. */
static void find_place(kept_sample *kept, ptrdiff_t count, ptrdiff_t place) {
    for (ptrdiff_t first = 0, last = count - 1; first < last;) {
        const sample_key pivot = kept[place].key;
        ptrdiff_t low = first, high = last;
        while (low <= high) {
            while (compare_keys(&kept[low].key, &pivot) < 0) ++low;
            while (compare_keys(&pivot, &kept[high].key) < 0) --high;
            if (low <= high) swap_samples(kept + low++, kept + high--);
        }
        if (high < place) first = low;
        if (place < low) last = high;
    }
}

/* Keep the `capacity` lowest of more samples. Hashes are evenly distributed, so nearly all samples lie in other bins
 * than the highest sample that is kept, and are separated without comparisons of keys. */
static void leave_lowest(stratum *one, size_t capacity) {
    size_t counts[HASH_BINS + 1] = {0}, below = 0, bin = 0; /* last bin: above an agreed limit */
    int shift = 0;
    while (one->limit.first >> shift >= HASH_BINS) ++shift;
    for (size_t i = 0; i < one->count; ++i) {
        const uint64_t found = one->kept[i].key.first >> shift;
        ++counts[found < HASH_BINS ? (size_t)found : (size_t)HASH_BINS];
    }
    while (below + counts[bin] < capacity) below += counts[bin++];
    part_at_bin(one->kept, one->count, shift, bin);
    if (bin < HASH_BINS) part_at_bin(one->kept + below, one->count - below, shift, bin + 1);
    find_place(one->kept + below, (ptrdiff_t)counts[bin], (ptrdiff_t)(capacity - below) - 1);
    one->count = capacity;
    const sample_key *last = &one->kept[capacity - 1].key;
    if (compare_keys(last, &one->limit) < 0) one->limit = *last;
}

/* Return the row in which to store a sample, or -1 if it cannot be among the `capacity` lowest. */
static ptrdiff_t row_for(stratum *one, size_t capacity, const sample_key *key) {
    if (compare_keys(key, &one->limit) > 0) return -1;
    if (one->count == room_for(capacity)) {
        leave_lowest(one, capacity);
        if (compare_keys(key, &one->limit) > 0) return -1;
    }
    kept_sample *next = one->kept + one->count;
    if (one->count++ == one->num_named) next->row = one->first_row + one->num_named++;
    next->key = *key;
    return (ptrdiff_t)next->row;
}

/* Sort by descending keys. */
static void sort_kept(stratum *one) { qsort(one->kept, one->count, sizeof *one->kept, falling); }

/* Return how many of the sorted samples have a key below `key`. */
static int64_t count_below(const stratum *one, const sample_key *key) {
    size_t first = 0, last = one->count; /* the first sample below `key` is in [first, last] */
    while (first < last) {
        const size_t middle = first + (last - first) / 2;
        if (compare_keys(&one->kept[middle].key, key) < 0) last = middle;
        else first = middle + 1;
    }
    return (int64_t)(one->count - first);
}

/* Return the word of a key that contains hexadecimal digit `digit`, of 48, counted from the lowest. */
static uint64_t *word_of(sample_key *key, int digit) {
    return digit >= 32 ? &key->first : digit >= 16 ? &key->step : &key->cell;
}

/* Return whether hashes alone decide, because in each stratum at most `capacity` samples have hashes up to the limit's;
 * if so, set step and cell of the limits to their maximum. Collective. */
static int hashes_suffice(stratum *strata, int num_strata, size_t capacity, int64_t *counts, MPI_Comm comm) {
    int is_so = 1;
    for (int s = 0; s < num_strata; ++s) {
        const sample_key above = {strata[s].limit.first + 1, 0, 0};
        counts[s] = above.first == 0 ? (int64_t)strata[s].count : count_below(strata + s, &above);
    }
    if (MPI_Allreduce(counts, counts + num_strata, num_strata, MPI_INT64_T, MPI_SUM, comm) != MPI_SUCCESS) return 0;
    for (int s = 0; s < num_strata; ++s) is_so = is_so && counts[num_strata + s] <= (int64_t)capacity;
    for (int s = 0; s < num_strata && is_so; ++s) strata[s].limit.step = strata[s].limit.cell = UINT64_MAX;
    return is_so;
}

/* Set the limit of every stratum to the `capacity`-th lowest key of all ranks; to the highest possible key if there are
 * fewer samples. Collective: one Allreduce for each of a key's 48 hexadecimal digits, from the highest (the first 16
 * are the hash), of CANDIDATES num_strata counts: how many keys lie below the key with each value of that digit. The
 * samples must be sorted. `counts` has room for twice as many numbers. Return an MPI error code. */
static int agree_limits(stratum *strata, int num_strata, size_t capacity, int64_t *counts, MPI_Comm comm) {
    const int num_counts = CANDIDATES * num_strata;
    int64_t *below = counts + num_counts;
    for (int s = 0; s < num_strata; ++s) memset(&strata[s].limit, 0, sizeof strata[s].limit);
    for (int digit = 47; digit >= 0; --digit) {
        if (digit == 31 && hashes_suffice(strata, num_strata, capacity, counts, comm)) break;
        for (int i = 0; i < num_counts; ++i) {
            sample_key candidate = strata[i / CANDIDATES].limit;
            *word_of(&candidate, digit) |= (uint64_t)(i % CANDIDATES + 1) << (digit % 16 * 4);
            counts[i] = count_below(strata + i / CANDIDATES, &candidate);
        }
        const int error = MPI_Allreduce(counts, below, num_counts, MPI_INT64_T, MPI_SUM, comm);
        if (error != MPI_SUCCESS) return error;
        for (int i = 0; i < num_counts; ++i)
            if (below[i] < (int64_t)capacity)
                *word_of(&strata[i / CANDIDATES].limit, digit) += UINT64_C(1) << (digit % 16 * 4);
    }
    return MPI_SUCCESS;
}
