// Kernels that decode stored numbers to samples, with the same bits as numpy, and that move rows of samples.
//
//   n  numbers      N, F  rows and columns of a table of samples
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace {

constexpr std::int64_t block_rows = 256;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// One column of a table: address of its stored numbers and the rule that decodes them (`_Column` in columns.py).
struct Column {
    const std::uint8_t* stored;
    std::int64_t kind;        // see `Kind`
    std::int64_t is_swapped;  // not in this machine's byte order
    std::int64_t is_packed;
    std::int64_t limits_are_packed;
    std::int64_t num_markers;
    double markers[8];
    double lower, upper, largest;
    double scale, offset;
    std::int64_t is_converted;
    double conversion_scale, conversion_offset;
};

enum Kind { int8, uint8, int16, uint16, int32, uint32, float32, float64 };

template <int bytes>
struct Bits;
template <>
struct Bits<1> {
    using Type = std::uint8_t;
};
template <>
struct Bits<2> {
    using Type = std::uint16_t;
};
template <>
struct Bits<4> {
    using Type = std::uint32_t;
};
template <>
struct Bits<8> {
    using Type = std::uint64_t;
};

std::uint8_t swapped(std::uint8_t bits) { return bits; }
std::uint16_t swapped(std::uint16_t bits) { return __builtin_bswap16(bits); }
std::uint32_t swapped(std::uint32_t bits) { return __builtin_bswap32(bits); }
std::uint64_t swapped(std::uint64_t bits) { return __builtin_bswap64(bits); }

template <class Stored>
void load(const Column& column, const std::int64_t* rows, std::int64_t first, std::int64_t n, Stored* values) {
    using Word = typename Bits<sizeof(Stored)>::Type;
    const Word* words = reinterpret_cast<const Word*>(column.stored);
    Word* found = reinterpret_cast<Word*>(values);
    if (rows)
        for (std::int64_t i = 0; i < n; ++i) std::memcpy(&found[i], words + rows[first + i], sizeof(Word));
    else
        std::memcpy(values, words + first, n * sizeof(Word));
    if (column.is_swapped)
        for (std::int64_t i = 0; i < n; ++i) found[i] = swapped(found[i]);
}

template <class Number>
Number or_nan(bool is_missing, Number value) {
    return is_missing ? std::numeric_limits<Number>::quiet_NaN() : value;
}

/// Decodes numbers without packing and unit conversion. All comparisons are exact in `Exact`.
template <class Exact, class Stored, class Out>
void take_plain(const Column& column, const Stored* __restrict stored, std::int64_t n, Out* __restrict values) {
    const Exact lower = column.lower, upper = column.upper, largest = column.largest;
    // No number equals NaN.
    const Exact first = column.num_markers ? column.markers[0] : std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t i = 0; i < n; ++i) {
        const Exact value = stored[i];
        values[i] = or_nan<Out>((std::fabs(value) >= largest) | (value == first), stored[i]);
    }
    if (column.lower != -infinity || column.upper != infinity)
        for (std::int64_t i = 0; i < n; ++i) {
            const Exact value = stored[i];
            values[i] = or_nan<Out>((value < lower) | (value > upper), values[i]);
        }
    for (std::int64_t m = 1; m < column.num_markers; ++m) {
        const Exact marker = column.markers[m];
        for (std::int64_t i = 0; i < n; ++i)
            values[i] = or_nan<Out>(static_cast<Exact>(stored[i]) == marker, values[i]);
    }
}

/// Decodes numbers with packing or unit conversion in float64, and rounds them to the table's type at the end. The
/// loops are written so that compilers vectorise them.
template <class Stored, class Out>
void compute(const Column& column, const Stored* stored, std::int64_t n, Out* values) {
    alignas(64) double number[block_rows], value[block_rows];
    for (std::int64_t i = 0; i < n; ++i) number[i] = stored[i];
    const double scale = column.scale, offset = column.offset;
    if (column.is_packed)
        for (std::int64_t i = 0; i < n; ++i) value[i] = number[i] * scale + offset;
    else
        std::memcpy(value, number, n * sizeof(double));
    const double lower = column.lower, upper = column.upper, largest = column.largest;
    if (lower != -infinity || upper != infinity) {
        const double* limited = column.limits_are_packed ? number : value;
        for (std::int64_t i = 0; i < n; ++i) value[i] = or_nan((limited[i] < lower) | (limited[i] > upper), value[i]);
    }
    for (std::int64_t i = 0; i < n; ++i) value[i] = or_nan(std::fabs(value[i]) >= largest, value[i]);
    for (std::int64_t m = 0; m < column.num_markers; ++m) {
        const double marker = column.markers[m];
        for (std::int64_t i = 0; i < n; ++i) value[i] = or_nan(number[i] == marker, value[i]);
    }
    const double to_wanted = column.conversion_scale, shift = column.conversion_offset;
    if (column.is_converted)
        for (std::int64_t i = 0; i < n; ++i) value[i] = value[i] * to_wanted + shift;
    for (std::int64_t i = 0; i < n; ++i) values[i] = static_cast<Out>(value[i]);
}

/// Sets n decoded values of a column, contiguous.
template <class Stored, class Out>
void decode(const Column& column, const std::int64_t* rows, std::int64_t first, std::int64_t n, Out* values) {
    using Exact = std::conditional_t<std::is_same_v<Stored, float>, float, double>;
    alignas(64) Stored gathered[block_rows];
    const Stored* stored = reinterpret_cast<const Stored*>(column.stored) + first;
    if (rows || column.is_swapped) {
        load(column, rows, first, n, gathered);
        stored = gathered;
    }
    if (column.is_packed || column.is_converted)
        compute(column, stored, n, values);
    else
        take_plain<Exact>(column, stored, n, values);
}

template <class Out>
void decode_any(const Column& column, const std::int64_t* rows, std::int64_t first, std::int64_t n, Out* values) {
    switch (column.kind) {
        case int8:
            return decode<std::int8_t>(column, rows, first, n, values);
        case uint8:
            return decode<std::uint8_t>(column, rows, first, n, values);
        case int16:
            return decode<std::int16_t>(column, rows, first, n, values);
        case uint16:
            return decode<std::uint16_t>(column, rows, first, n, values);
        case int32:
            return decode<std::int32_t>(column, rows, first, n, values);
        case uint32:
            return decode<std::uint32_t>(column, rows, first, n, values);
        case float32:
            return decode<float>(column, rows, first, n, values);
        case float64:
            return decode<double>(column, rows, first, n, values);
    }
}

constexpr std::int64_t group_columns = 4;

/// Writes four rows of four columns. Columns beyond those of the table are written behind the row.
template <class Out>
void store_four_rows(const Out (*values)[block_rows], std::int64_t i, Out* table, std::int64_t stride) {
    for (std::int64_t row = 0; row < 4; ++row) {
        const Out four[] = {values[0][i + row], values[1][i + row], values[2][i + row], values[3][i + row]};
        std::memcpy(table + row * stride, four, sizeof(four));
    }
}

#ifdef __SSE2__
template <>
void store_four_rows(const float (*values)[block_rows], std::int64_t i, float* table, std::int64_t stride) {
    __m128 a = _mm_load_ps(values[0] + i), b = _mm_load_ps(values[1] + i);
    __m128 c = _mm_load_ps(values[2] + i), d = _mm_load_ps(values[3] + i);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(table, a);
    _mm_storeu_ps(table + stride, b);
    _mm_storeu_ps(table + 2 * stride, c);
    _mm_storeu_ps(table + 3 * stride, d);
}
#endif

/// Sets n rows of a group of columns in the table, whose rows are `stride` apart. If the group has fewer than four
/// columns, the elements that it writes behind a row are overwritten later, by the next rows or the groups before it;
/// the last rows of the table are written element by element.
template <class Out>
void store(const Out (*values)[block_rows], std::int64_t n, std::int64_t columns, bool is_last, Out* table,
           std::int64_t stride) {
    const std::int64_t whole = is_last && columns < group_columns ? n - group_columns : n - group_columns + 1;
    std::int64_t i = 0;
    for (; i < whole; i += 4) store_four_rows<Out>(values, i, table + i * stride, stride);
    for (; i < n; ++i)
        for (std::int64_t c = 0; c < columns; ++c) table[i * stride + c] = values[c][i];
}

template <class Out>
void decode_all(const Column* columns, std::int64_t F, const std::int64_t* rows, std::int64_t N, Out* table) {
    alignas(64) Out values[group_columns][block_rows] = {};
    // The elements of a column are strided in the table: a block of rows stays in the cache until all columns are set.
    for (std::int64_t first = 0; first < N; first += block_rows) {
        const std::int64_t n = N - first < block_rows ? N - first : block_rows;
        if (F == 1) {
            decode_any(columns[0], rows, first, n, table + first);
            continue;
        }
        for (std::int64_t group = (F - 1) / group_columns * group_columns; group >= 0; group -= group_columns) {
            const std::int64_t count = F - group < group_columns ? F - group : group_columns;
            for (std::int64_t c = 0; c < count; ++c) decode_any(columns[group + c], rows, first, n, values[c]);
            store<Out>(values, n, count, first + n == N, table + first * F + group, F);
        }
    }
}

}  // namespace

/// Fills `table` [N][F] with decoded values, NaN where missing: row i is element rows[i] of each column, or element i
/// if `rows` is null.
extern "C" void decode_float(const Column* columns, std::int64_t F, const std::int64_t* rows, std::int64_t N,
                             float* table) {
    decode_all(columns, F, rows, N, table);
}

extern "C" void decode_double(const Column* columns, std::int64_t F, const std::int64_t* rows, std::int64_t N,
                              double* table) {
    decode_all(columns, F, rows, N, table);
}

namespace {

/// Moves rows of a length known at compile time: for a few bytes a call of memcpy would dominate the time.
template <int bytes, bool gathers>
void move_rows(const std::uint8_t* from, const std::int64_t* rows, std::int64_t n, std::uint8_t* to) {
    for (std::int64_t i = 0; i < n; ++i)
        std::memcpy(to + (gathers ? i : rows[i]) * bytes, from + (gathers ? rows[i] : i) * bytes, bytes);
}

template <bool gathers>
void move_any(const std::uint8_t* from, const std::int64_t* rows, std::int64_t n, std::int64_t bytes,
              std::uint8_t* to) {
    switch (bytes) {
        case 4:
            return move_rows<4, gathers>(from, rows, n, to);
        case 8:
            return move_rows<8, gathers>(from, rows, n, to);
        case 12:
            return move_rows<12, gathers>(from, rows, n, to);
        case 16:
            return move_rows<16, gathers>(from, rows, n, to);
        case 20:
            return move_rows<20, gathers>(from, rows, n, to);
        case 24:
            return move_rows<24, gathers>(from, rows, n, to);
        case 28:
            return move_rows<28, gathers>(from, rows, n, to);
        case 32:
            return move_rows<32, gathers>(from, rows, n, to);
        case 40:
            return move_rows<40, gathers>(from, rows, n, to);
        case 48:
            return move_rows<48, gathers>(from, rows, n, to);
        case 64:
            return move_rows<64, gathers>(from, rows, n, to);
    }
    for (std::int64_t i = 0; i < n; ++i)
        std::memcpy(to + (gathers ? i : rows[i]) * bytes, from + (gathers ? rows[i] : i) * bytes, bytes);
}

}  // namespace

/// Sets row i of `to` [n][bytes] to row rows[i] of `from`.
extern "C" void gather_rows(const std::uint8_t* from, const std::int64_t* rows, std::int64_t n, std::int64_t bytes,
                            std::uint8_t* to) {
    move_any<true>(from, rows, n, bytes, to);
}

/// Sets row rows[i] of `to` to row i of `from` [n][bytes].
extern "C" void scatter_rows(const std::uint8_t* from, const std::int64_t* rows, std::int64_t n, std::int64_t bytes,
                             std::uint8_t* to) {
    move_any<false>(from, rows, n, bytes, to);
}
