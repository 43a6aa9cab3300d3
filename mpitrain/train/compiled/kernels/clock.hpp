// A clock that is read in some nanoseconds, in ticks of its own: a step of a small network takes two thousand.
#pragma once

#include <cstdint>
#include <ctime>

inline std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t now;
    asm volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#else
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec);
#endif
}

/// Ticks from one moment to a later one; 0 where another core's clock, a little behind, was read later.
inline std::uint64_t ticks_between(std::uint64_t start, std::uint64_t end) { return end > start ? end - start : 0; }
