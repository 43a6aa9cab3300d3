/* Set the optimisation options of the following code, independent of the model's: -O2 vectorises little, and -Ofast
 * would remove operations that exact sums need. */
#if defined(__clang__)
#pragma float_control(precise, on)
#elif defined(__GNUC__)
#pragma GCC optimize("O3", "no-fast-math")
#endif

/* Marks functions with loops over a block: also compiled for wide vectors; the version is selected at program start. */
#define FOR_WIDE_VECTORS
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute) && !defined(__NVCOMPILER)
#if __has_attribute(target_clones)
#undef FOR_WIDE_VECTORS
#define FOR_WIDE_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
