/* The same exact sums for a block of samples at a time, in doubles: possible for most fields, in a fifth of the time.
 *
 * Floats with exponents within WIDEST_SPREAD of each other are integer multiples of one unit, with so few bits that
 * doubles add BLOCK_SAMPLES of them without rounding. Their squares are split at a bit that is the same for the whole
 * block, and each half is summed without rounding: the sum is less than 2^52 units, so that a bin can take it in place
 * of BLOCK_SAMPLES values. Other columns of a block are added value by value. */

enum { BLOCK_SAMPLES = 128, FEWEST_SAMPLES = 16, WIDEST_SPREAD = 22, SIDE_BY_SIDE = 8 };

/* One number per column: the extremes as ordered integers, the bits of the smallest non-zero magnitude, the constant
 * that splits squares, and the sums of values and of both halves of squares. */
typedef struct {
    int32_t *highest, *lowest, *smallest;
    double *split, *sum, *upper, *lower;
} block_numbers;

/* SIDE_BY_SIDE samples of n values are treated as one row: loops over these rows are long, and few. */
static size_t bytes_of_block_numbers(int num_columns) {
    return SIDE_BY_SIDE * (size_t)num_columns * (4 * sizeof(double) + 3 * sizeof(int32_t));
}

static block_numbers block_numbers_in(double *memory, int num_columns) {
    const size_t width = SIDE_BY_SIDE * (size_t)num_columns;
    int32_t *numbers = (int32_t *)(memory + 4 * width);
    const block_numbers found = {numbers, numbers + width, numbers + 2 * width,
                                 memory, memory + width, memory + 2 * width, memory + 3 * width};
    return found;
}

/* Update the extremes by `count` rows [n]; `count` is a constant in every call, so that numbers stay in registers. */
static inline void take_extremes(int n, int count, const float *restrict rows, int32_t *restrict highest,
                                 int32_t *restrict lowest, int32_t *restrict smallest) {
    for (int c = 0; c < n; ++c) {
        int32_t high = highest[c], low = lowest[c], small = smallest[c];
        for (int s = 0; s < count; ++s) {
            int32_t bits;
            memcpy(&bits, rows + (size_t)s * (size_t)n + c, sizeof bits);
            const int32_t magnitude = bits & 0x7fffffff, number = bits < 0 ? ~magnitude : bits;
            const int32_t of_nonzero = magnitude ? magnitude : INT32_MAX;
            high = number > high ? number : high;
            low = number < low ? number : low;
            small = of_nonzero < small ? of_nonzero : small;
        }
        highest[c] = high;
        lowest[c] = low;
        smallest[c] = small;
    }
}

static inline void take_sums(int n, int count, const float *restrict rows, const double *restrict split,
                             double *restrict sums, double *restrict uppers, double *restrict lowers) {
    for (int c = 0; c < n; ++c) {
        double sum = sums[c], upper = uppers[c], lower = lowers[c];
        for (int s = 0; s < count; ++s) {
            const double value = rows[(size_t)s * (size_t)n + c], square = value * value;
            const double high = (square + split[c]) - split[c];
            sum += value;
            upper += high;
            lower += square - high;
        }
        sums[c] = sum;
        uppers[c] = upper;
        lowers[c] = lower;
    }
}

static inline void take_higher(int n, int32_t *restrict numbers, const int32_t *restrict others) {
    for (int c = 0; c < n; ++c) numbers[c] = others[c] > numbers[c] ? others[c] : numbers[c];
}

static inline void take_lower(int n, int32_t *restrict numbers, const int32_t *restrict others) {
    for (int c = 0; c < n; ++c) numbers[c] = others[c] < numbers[c] ? others[c] : numbers[c];
}

static inline void take_sum(int n, double *restrict numbers, const double *restrict others) {
    for (int c = 0; c < n; ++c) numbers[c] += others[c];
}

FOR_WIDE_VECTORS
static void find_extremes(int n, int count, const float *rows, block_numbers of) {
    const int width = SIDE_BY_SIDE * n;
    for (int c = 0; c < width; ++c) {
        of.highest[c] = INT32_MIN;
        of.lowest[c] = of.smallest[c] = INT32_MAX;
    }
    for (; count >= 8 * SIDE_BY_SIDE; count -= 8 * SIDE_BY_SIDE, rows += 8 * width)
        take_extremes(width, 8, rows, of.highest, of.lowest, of.smallest);
    for (; count >= SIDE_BY_SIDE; count -= SIDE_BY_SIDE, rows += width)
        take_extremes(width, 1, rows, of.highest, of.lowest, of.smallest);
    take_extremes(count * n, 1, rows, of.highest, of.lowest, of.smallest);
    for (int half = width / 2; half >= n; half /= 2) {
        take_higher(half, of.highest, of.highest + half);
        take_lower(half, of.lowest, of.lowest + half);
        take_lower(half, of.smallest, of.smallest + half);
    }
}

FOR_WIDE_VECTORS
static void add_rows(int n, int count, const float *rows, block_numbers of) {
    const int width = SIDE_BY_SIDE * n;
    for (int c = 0; c < width; ++c) of.sum[c] = of.upper[c] = of.lower[c] = 0;
    for (int c = n; c < width; ++c) of.split[c] = of.split[c - n];
    for (; count >= 8 * SIDE_BY_SIDE; count -= 8 * SIDE_BY_SIDE, rows += 8 * width)
        take_sums(width, 8, rows, of.split, of.sum, of.upper, of.lower);
    for (; count >= SIDE_BY_SIDE; count -= SIDE_BY_SIDE, rows += width)
        take_sums(width, 1, rows, of.split, of.sum, of.upper, of.lower);
    take_sums(count * n, 1, rows, of.split, of.sum, of.upper, of.lower);
    for (int half = width / 2; half >= n; half /= 2) {
        take_sum(half, of.sum, of.sum + half);
        take_sum(half, of.upper, of.upper + half);
        take_sum(half, of.lower, of.lower + half);
    }
}

/* Return whether this build adds as IEEE 754 requires, which compiler options may prevent. */
static int splits_squares(void) {
    enum { COUNT = 4 * SIDE_BY_SIDE + SIDE_BY_SIDE + 1 }; /* samples: both the loop over whole rows and the rest run */
    float rows[COUNT][2];
    double memory[SIDE_BY_SIDE * 2 * (4 + 2)];
    const block_numbers of = block_numbers_in(memory, 2);
    for (int s = 0; s < COUNT; ++s) rows[s][0] = 0x1p-24f, rows[s][1] = 1.0f;
    for (int s = 0; s < COUNT; s += 4 * SIDE_BY_SIDE / 2) rows[s][0] = 1.0f + 0x1p-23f;
    of.split[0] = of.split[1] = 1.5 * 0x1p8;
    add_rows(2, COUNT, rows[0], of);
    return of.upper[0] == 3 * (1.0 + 0x1p-22) && of.lower[0] == 3 * 0x1p-46 + (COUNT - 3) * 0x1p-48;
}

static double power_of_2(int exponent) {
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Return the exponent of the largest magnitude. */
static int highest_exponent(block_numbers of, int c) {
    const int32_t highest = of.highest[c], lowest_negated = ~of.lowest[c]; /* -0 is ordered as -1 */
    return (highest > lowest_negated ? highest : lowest_negated) >> 23;
}

/* Return the exponent of the smallest non-zero magnitude; EXPONENTS - 1 if all values are 0. */
static int lowest_exponent(block_numbers of, int c) { return of.smallest[c] >> 23; }

/* Return the constant that splits the squares of a column's values; 0 if they cannot be added as a block. */
static double split_of(block_numbers of, int c) {
    const int highest = highest_exponent(of, c), lowest = lowest_exponent(of, c);
    return lowest == 0 || highest - lowest > WIDEST_SPREAD ? 0 : 1.5 * power_of_2(2 * (highest - 127) + 8);
}

/* Add a column's sums to its bins, as integers: sums in units of the smallest value, lower halves in units of its
 * square, upper halves in units of the split. */
static void add_sums(column_sums *column, block_numbers of, int c) {
    const int highest = highest_exponent(of, c), lowest = lowest_exponent(of, c);
    column->bins[lowest].sum += (int64_t)(of.sum[c] * power_of_2(150 - lowest));
    column->bins[lowest].squares += (int64_t)(of.lower[c] * power_of_2(2 * (150 - lowest)));
    column->bins[highest + 1].squares += (int64_t)(of.upper[c] * power_of_2(2 * (149 - highest)));
}

static void add_one_by_one(column_sums *column, int num_columns, int count, const float *values) {
    for (int s = 0; s < count; ++s) {
        uint32_t bits;
        memcpy(&bits, values + (size_t)s * (size_t)num_columns, sizeof bits);
        add_value(column, bits);
    }
}

/* Add `rows` [count][num_columns] of finite values. The caller must fold in time. */
static void add_block(column_sums *columns, int num_columns, int count, const float *rows, block_numbers of) {
    find_extremes(num_columns, count, rows, of);
    for (int c = 0; c < num_columns; ++c) of.split[c] = split_of(of, c);
    add_rows(num_columns, count, rows, of);
    for (int c = 0; c < num_columns; ++c) {
        if (of.highest[c] > columns[c].highest) columns[c].highest = of.highest[c];
        if (~of.lowest[c] > columns[c].lowest_negated) columns[c].lowest_negated = ~of.lowest[c];
        if (of.split[c] > 0) add_sums(columns + c, of, c);
        else add_one_by_one(columns + c, num_columns, count, rows + c);
    }
}
