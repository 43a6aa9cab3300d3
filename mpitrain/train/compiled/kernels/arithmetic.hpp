// Arithmetic with bits that depend on neither the CPU nor the compiler: each operation in the source rounds once.
//
// + - * / and the square root are IEEE operations, rounded to nearest, and so is the fused multiply-add; build.py sets
// options that forbid the compiler to fuse operations by itself. Results do not depend on the width of the registers:
// sums across lanes have the order of `lanes` logical lanes, and all other operations are elementwise. The compiler's
// command line defines the macro REAL.
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

#ifndef REAL  // for editors, which parse this file without the command line
#define REAL float
#endif

namespace {

using Real = REAL;
constexpr bool is_float = std::is_same_v<Real, float>;

constexpr int lanes =
    64 / static_cast<int>(sizeof(Real));  // logical lanes, for any register width; rows are padded to them
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

/// a * b + c, rounded once, for CPUs without a fused multiply-add instruction.
inline float emulated_fused(float a, float b, float c) {
    // The product is exact in float64. The sum is rounded to odd, i.e. its last bit is set if it is inexact, so that
    // the later rounding to 24 bits cannot mistake it for a tie (Boldo and Melquiond, 2008).
    const double product = static_cast<double>(a) * static_cast<double>(b), addend = static_cast<double>(c);
    const double sum = product + addend, back = sum - product;
    const double cut_off = (product - (sum - back)) + (addend - back);  // exact (Knuth)
    std::int64_t bits;
    std::memcpy(&bits, &sum, sizeof(bits));
    const bool is_inexact = cut_off < 0 || cut_off > 0;  // false for a NaN, which an infinite sum gives
    const std::int64_t outwards = (cut_off > 0) == (sum > 0) ? 1 : -1;
    bits += is_inexact && bits % 2 == 0 ? outwards : 0;
    double odd;
    std::memcpy(&odd, &bits, sizeof(odd));
    return static_cast<float>(odd);
}
inline double emulated_fused(double a, double b, double c) { return std::fma(a, b, c); }  // std::fma is exact by IEEE

#if defined(__AVX512F__) || (defined(__AVX__) && defined(__FMA__)) || defined(__aarch64__)
#define HAS_FUSED 1
#endif

/// a * b + c, rounded once.
inline Vector fused(Vector a, Vector b, Vector c) {
#if defined(HAS_FUSED) && defined(__x86_64__)
    // Assembly: GCC compiles the intrinsic function to a third more instructions, which move each sum out of its
    // register and back.
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

/// The smallest normal number; smaller ones are subnormal and have fewer digits.
constexpr Real smallest_normal = is_float ? Real(1.17549435e-38) : Real(2.2250738585072014e-308);

/// The value, or 0 if it is subnormal. Arithmetic with subnormal numbers takes a hundred times as long on some CPUs,
/// and state that is kept between steps, e.g. the moments of a dead unit, would stay subnormal forever.
inline Real without_tiny(Real value) { return std::fabs(value) < smallest_normal ? 0 : value; }

/// Sets rounding to nearest, without flushing subnormal numbers to 0, during its lifetime, and restores the thread's
/// modes at its end.
class IeeeArithmetic {
  public:
    IeeeArithmetic() : before_(get()) { set(ieee); }
    ~IeeeArithmetic() { set(before_); }
    IeeeArithmetic(const IeeeArithmetic&) = delete;
    IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;

  private:
    // The memory clobber prevents the compiler from moving arithmetic on memory across the instruction.
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

/// Lanes of the concatenation of a and b: of each segment of `length` lanes the half that starts at `from`.
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

/// Lane r of the result is the sum of the lanes of rows[r], added by halves: first half plus second half, then the
/// halves of that, and so on. Each addition works on two rows, since one row would leave half of the lanes idle.
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
