// A clock in ticks of its own unit that is read in a few nanoseconds; a step of a small network takes about 2 us.
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

/// Ticks from `start` to `end`; 0 if `end` was read on another core with a clock that is slightly behind.
inline std::uint64_t ticks_between(std::uint64_t start, std::uint64_t end) { return end > start ? end - start : 0; }
