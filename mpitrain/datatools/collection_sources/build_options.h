/* Options of what follows, whatever those of the model are: -O2 makes few vectors, and -Ofast would leave out what an exact
 * sum needs. */
#if defined(__clang__)
#pragma float_control(precise, on)
#elif defined(__GNUC__)
#pragma GCC optimize("O3", "no-fast-math")
#endif

/* Before functions of loops over a block: they are compiled for wide vectors too, and the program chooses at its start. */
#define FOR_WIDE_VECTORS
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute) && !defined(__NVCOMPILER)
#if __has_attribute(target_clones)
#undef FOR_WIDE_VECTORS
#define FOR_WIDE_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
