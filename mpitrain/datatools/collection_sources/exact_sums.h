/* Exact sums of floats and of their squares, as integers: independent of the order of additions and of ranks.
 *
 * A float is an integer of 24 bits times a power of two. Integers of one exponent are summed in a bin of 64 bits.
 * Squares have 48 bits, so that at most 32,768 are added before the bins are emptied into a wide integer. This has
 * digits of 32 bits, each in an int64_t, so that the digits of several ranks can be added before carries. About 2 ns
 * per value.
 */

enum { EXPONENTS = 256, ADDS_BEFORE_FOLD = 32768, SUM_DIGITS = 12, SQUARE_DIGITS = 21, BIG_DIGITS = 26 };

/* The bins of one column since the last fold, and the folded sums, in units of 2^-149, and of squares, in units of
 * 2^-298. `highest` and `lowest_negated` are ordered integers (`ordered_float`): over ranks, the maximum of each is
 * taken. */
typedef struct {
    struct {
        int64_t sum, squares;
    } bins[EXPONENTS];
    int64_t sum[SUM_DIGITS], squares[SQUARE_DIGITS];
    int32_t highest, lowest_negated;
} column_sums;

static int32_t ordered_float(uint32_t bits) {
    return (int32_t)(bits & 0x80000000u ? ~(bits & 0x7fffffffu) : bits);
}

static double unordered_float(int32_t number) {
    const uint32_t bits = number < 0 ? 0x80000000u | ~(uint32_t)number : (uint32_t)number;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void clear_sums(column_sums *column) {
    memset(column, 0, sizeof *column);
    column->highest = column->lowest_negated = INT32_MIN;
}

/* Add one finite value, by its bits. */
static inline void add_value(column_sums *column, uint32_t bits) {
    const uint32_t exponent = bits >> 23 & 255;
    const int64_t magnitude = (int64_t)(bits & 0x7fffff) | (int64_t)(exponent != 0) << 23;
    const int32_t number = ordered_float(bits);
    column->bins[exponent].sum += bits >> 31 ? -magnitude : magnitude;
    column->bins[exponent].squares += magnitude * magnitude;
    if (number > column->highest) column->highest = number;
    if (~number > column->lowest_negated) column->lowest_negated = ~number;
}

/* Propagate carries: then all digits except the last, which has the sign, are in [0, 2^32). */
static void carry(int64_t *digits, int num_digits) {
    for (int i = 0; i + 1 < num_digits; ++i) {
        digits[i + 1] += digits[i] >> 32;
        digits[i] &= INT64_C(0xffffffff);
    }
}

/* Add `value` times 2^shift. */
static void add_shifted(int64_t *digits, int shift, int64_t value) {
    const int first = shift / 32, rest = shift % 32;
    const int64_t low = (value & INT64_C(0xffffffff)) << rest, high = (value >> 32) * (INT64_C(1) << rest);
    digits[first] += low & INT64_C(0xffffffff);
    digits[first + 1] += (low >> 32) + (high & INT64_C(0xffffffff));
    digits[first + 2] += high >> 32;
}

/* Empty the bins into the wide integers. */
static void fold(column_sums *column) {
    for (int exponent = 0; exponent < EXPONENTS; ++exponent) {
        const int shift = exponent > 0 ? exponent - 1 : 0;
        if (column->bins[exponent].sum == 0 && column->bins[exponent].squares == 0) continue;
        add_shifted(column->sum, shift, column->bins[exponent].sum);
        add_shifted(column->squares, 2 * shift, column->bins[exponent].squares);
        column->bins[exponent].sum = 0;
        column->bins[exponent].squares = 0;
    }
    carry(column->sum, SUM_DIGITS);
    carry(column->squares, SQUARE_DIGITS);
}

/* Set product = a b; all digits must be in [0, 2^32). */
static void multiply(uint64_t *product, const int64_t *a, int num_a, const int64_t *b, int num_b) {
    memset(product, 0, BIG_DIGITS * sizeof *product);
    for (int i = 0; i < num_a; ++i) {
        uint64_t carried = 0;
        for (int j = 0; i + j < BIG_DIGITS; ++j) {
            const uint64_t factor = j < num_b ? (uint64_t)b[j] : 0;
            const uint64_t next = product[i + j] + (uint64_t)a[i] * factor + carried;
            product[i + j] = next & UINT64_C(0xffffffff);
            carried = next >> 32;
        }
    }
}

/* Return the quotient as IEEE 754 defines it: the volatile number prevents -ffast-math from using a reciprocal. */
static double quotient(double numerator, double denominator) {
    volatile double kept = denominator;
    return numerator / kept;
}

/* Return the double nearest to the number with digits in [0, 2^32), times 2^exponent. */
static double nearest_double(const uint64_t *digits, int num_digits, int exponent) {
    int top = num_digits - 1;
    while (top > 0 && digits[top] == 0) --top;
    uint64_t word = digits[top];
    int below = 32 * top, next = top - 1;
    for (; next >= 0 && word < UINT64_C(1) << 32; --next, below -= 32) word = word << 32 | digits[next];
    int is_inexact = 0; /* 64 bits contain a double's 53 bits and those that decide its rounding */
    if (next >= 0) {
        int room = 0;
        while (room < 31 && !(word >> (63 - room))) ++room;
        word = word << room | (room ? digits[next] >> (32 - room) : 0);
        is_inexact = (digits[next] & ((UINT64_C(1) << (32 - room)) - 1)) != 0;
        below -= room;
        while (--next >= 0) is_inexact |= digits[next] != 0;
    }
    return ldexp((double)(word | (uint64_t)is_inexact), below + exponent);
}

/* Set the magnitude of folded digits; return whether they are negative. */
static int magnitude_of(const int64_t *digits, int num_digits, int64_t *magnitude) {
    const int is_negative = digits[num_digits - 1] < 0;
    for (int i = 0; i < num_digits; ++i) magnitude[i] = is_negative ? -digits[i] : digits[i];
    carry(magnitude, num_digits);
    return is_negative;
}

static double mean_of(const column_sums *column, int64_t count) {
    int64_t digits[SUM_DIGITS];
    uint64_t words[SUM_DIGITS];
    const int is_negative = magnitude_of(column->sum, SUM_DIGITS, digits);
    for (int i = 0; i < SUM_DIGITS; ++i) words[i] = (uint64_t)digits[i];
    const double mean = quotient(nearest_double(words, SUM_DIGITS, -149), (double)count);
    return is_negative ? -mean : mean;
}

/* Return the standard deviation of the population, as mpitrain does: (n sum of squares - sum^2) / n^2, exact up to the
 * division. */
static double standard_deviation_of(const column_sums *column, int64_t count) {
    const int64_t counted[2] = {count & INT64_C(0xffffffff), count >> 32};
    int64_t sum[SUM_DIGITS];
    uint64_t first[BIG_DIGITS], second[BIG_DIGITS];
    magnitude_of(column->sum, SUM_DIGITS, sum);
    multiply(first, column->squares, SQUARE_DIGITS, counted, 2);
    multiply(second, sum, SUM_DIGITS, sum, SUM_DIGITS);
    uint64_t borrowed = 0;
    for (int i = 0; i < BIG_DIGITS; ++i) {
        const uint64_t taken = second[i] + borrowed;
        borrowed = first[i] < taken;
        first[i] = (first[i] - taken) & UINT64_C(0xffffffff);
    }
    return sqrt(quotient(quotient(nearest_double(first, BIG_DIGITS, -298), (double)count), (double)count));
}
