// Arithmetic whose bits follow neither the CPU nor the compiler: one rounding for each operation that is written here.
//
// + - * / and the square root are IEEE operations, rounded to nearest, and so is the fused product and sum: the
// compiler is told to fuse nothing by itself (build.py). Registers may be wide or narrow: the order of a sum across
// lanes is that of `lanes` logical ones, and everything else is done number by number. The compiler's command line
// gives the macro REAL.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef REAL  // an editor reads this file
#define REAL float
#endif

namespace {

using Real = REAL;
constexpr bool is_float = std::is_same_v<Real, float>;

constexpr int lanes = 64 / static_cast<int>(sizeof(Real));  // whatever the registers hold: rows are padded to these
#if defined(__AVX512F__)
constexpr int register_bytes = 64, row_block = 8;
#elif defined(__AVX__)
constexpr int register_bytes = 32, row_block = 6;
#else
constexpr int register_bytes = 16, row_block = 4;
#endif
constexpr int register_lanes = register_bytes / static_cast<int>(sizeof(Real));
typedef Real Vector __attribute__((vector_size(register_bytes), aligned(sizeof(Real)), may_alias));

Vector load(const Real* from) { return *reinterpret_cast<const Vector*>(from); }
void store(Real* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
Vector spread(Real value) { return value - Vector{}; }  // not +, which would turn -0 into 0

/// a * b + c, rounded once, where the CPU has no such instruction.
inline float emulated_fused(float a, float b, float c) {
    // The product is exact in float64. The sum is rounded to odd: with the last bit set where anything was cut off, no
    // later rounding to 24 bits can take it for a tie (Boldo and Melquiond, 2008).
    const double product = static_cast<double>(a) * static_cast<double>(b), addend = static_cast<double>(c);
    const double sum = product + addend, back = sum - product;
    const double cut_off = (product - (sum - back)) + (addend - back);  // exact (Knuth)
    std::int64_t bits;
    std::memcpy(&bits, &sum, sizeof(bits));
    const bool is_inexact = cut_off < 0 || cut_off > 0;  // not where it is a NaN, of an infinite sum
    const std::int64_t outwards = (cut_off > 0) == (sum > 0) ? 1 : -1;
    bits += is_inexact && bits % 2 == 0 ? outwards : 0;
    double odd;
    std::memcpy(&odd, &bits, sizeof(odd));
    return static_cast<float>(odd);
}
inline double emulated_fused(double a, double b, double c) {
    return std::fma(a, b, c);
}  // IEEE: the library's is exact

#if defined(__AVX512F__) || (defined(__AVX__) && defined(__FMA__)) || defined(__aarch64__)
#define HAS_FUSED 1
#endif

/// a * b + c, rounded once.
inline Vector fused(Vector a, Vector b, Vector c) {
#if defined(HAS_FUSED) && defined(__x86_64__)
    // Not the intrinsic function, of which GCC makes a third more instructions: it moves each sum out and back.
    if constexpr (is_float) {
        asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    } else {
        asm("vfmadd231pd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    }
    return c;
#elif defined(HAS_FUSED)
    if constexpr (is_float) {
        return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
    } else {
        return (Vector)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
    }
#else
    Vector result;
    for (int lane = 0; lane < register_lanes; ++lane) result[lane] = emulated_fused(a[lane], b[lane], c[lane]);
    return result;
#endif
}

/// The smallest number that has all its digits.
constexpr Real smallest_normal = is_float ? Real(1.17549435e-38) : Real(2.2250738585072014e-308);

/// The value, or 0 where it is too small to have all its digits. Arithmetic with such numbers takes a hundred times as
/// long on some CPUs, and what a step leaves behind, such as the moments of a unit that is dead, would stay so for
/// ever.
inline Real without_tiny(Real value) { return std::fabs(value) < smallest_normal ? 0 : value; }

/// Rounds to nearest and keeps tiny numbers while this lives, whatever another library has set for this thread.
class IeeeArithmetic {
  public:
    IeeeArithmetic() : before_(get()) { set(ieee); }
    ~IeeeArithmetic() { set(before_); }
    IeeeArithmetic(const IeeeArithmetic&) = delete;
    IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;

  private:
    // The clobber of memory keeps arithmetic on what lies there from moving across.
#if defined(__x86_64__)
    using Word = std::uint32_t;
    static constexpr Word ieee = 0x1f80;
    static Word get() { return _mm_getcsr(); }
    static void set(Word word) { asm volatile("ldmxcsr %0" : : "m"(word) : "memory"); }
#elif defined(__aarch64__)
    using Word = std::uint64_t;
    static constexpr Word ieee = 0;
    static Word get() {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
    using Word = int;
    static constexpr Word ieee = 0;
    static Word get() { return 0; }
    static void set(Word) {}
#endif
    const Word before_;
};

/// Lanes of a and b, as if b's followed a's: of each segment of `length` lanes the half that starts at `from`.
template <int length, int from, std::size_t... lane>
Vector halves(Vector a, Vector b, std::index_sequence<lane...>) {
    constexpr int half = length / 2;
#if defined(__clang__)
    return __builtin_shufflevector(a, b,
                                   (static_cast<int>(lane) / half * length + static_cast<int>(lane) % half + from)...);
#else
    using Lane = std::conditional_t<is_float, std::int32_t, std::int64_t>;
    typedef Lane Lanes __attribute__((vector_size(register_bytes)));
    return __builtin_shuffle(
        a, b, Lanes{(static_cast<Lane>(lane) / half * length + static_cast<Lane>(lane) % half + from)...});
#endif
}

/// Each lane r becomes the sum of the lanes of rows[r], half and half: first and second half, then their quarters, and
/// so on. Two rows share an addition from the start, where a row alone would leave ever more lanes idle.
template <int length = register_lanes>
Vector sums_of_lanes(Vector* rows) {
    if constexpr (length == 1) {
        return rows[0];
    } else {
        constexpr auto lane = std::make_index_sequence<register_lanes>();
        Vector folded[length / 2];
        for (int r = 0; r < length / 2; ++r)
            folded[r] = halves<length, 0>(rows[2 * r], rows[2 * r + 1], lane) +
                        halves<length, length / 2>(rows[2 * r], rows[2 * r + 1], lane);
        return sums_of_lanes<length / 2>(folded);
    }
}

}  // namespace
