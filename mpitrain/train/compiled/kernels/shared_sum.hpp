// A barrier of the ranks of one node in shared memory, for sums: each rank writes its rows, waits for all ranks, and
// then adds all rows itself, in an order that does not depend on the order of arrival.
//
//   P ranks of the node      R rows of all ranks      n numbers a row
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "clock.hpp"

/// The start of the shared memory, initially zero. After it are two buffers of R rows, used in turn: a rank that is
/// already in the next sum writes to the other buffer, and returns to this one only after all ranks have read it. Sums
/// by shares use it otherwise, see share_sum.hpp.
struct Meeting {
    alignas(64) std::atomic<std::uint32_t> num_arrived;
    alignas(64) std::atomic<std::uint32_t> round;  // meetings that are complete
    alignas(64) std::atomic<std::uint32_t> num_asleep;
    alignas(64) char rows[1];
};

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/// Sleeps until `round` differs from `current`, for at most a second. It may return earlier: the caller checks again.
inline void sleep_while(std::atomic<std::uint32_t>& round, std::uint32_t current) {
#ifdef __linux__
    constexpr timespec longest{1, 0};  // in case `num_asleep` is damaged and no rank wakes this one
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&round), FUTEX_WAIT, current, &longest, nullptr, 0);
#else
    (void)round, (void)current;
    sched_yield();
#endif
}

inline void wake_all(std::atomic<std::uint32_t>& round) {
#ifdef __linux__
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&round), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#else
    (void)round;
#endif
}

/// Waits until round `current` has ended: polls for about 100 us before it sleeps, because the last rank needs time to
/// wake a sleeping one. If ranks share cores, each poll yields the core. Returns the ticks that it waited; the clock is
/// read between polls, where it costs nothing.
inline std::uint64_t wait_for_end(Meeting& meeting, std::uint32_t current, bool shares_cores) {
    const std::uint64_t start = ticks();
    std::uint64_t seen = start;
    for (int look = 0; look < (shares_cores ? 4 : 4000); ++look) {
        if (meeting.round.load(std::memory_order_acquire) != current) return ticks_between(start, seen);
        shares_cores ? static_cast<void>(sched_yield()) : relax();
        seen = ticks();
    }
    meeting.num_asleep.fetch_add(1);
    while (meeting.round.load() == current) sleep_while(meeting.round, current);
    meeting.num_asleep.fetch_sub(1);
    return ticks_between(start, ticks());
}

/// The numbers of meetings that this rank has begun and left, in its own memory, for a thread that watches.
struct MeetingCounts {
    volatile std::int64_t begun, left;
};

/// Waits until all `num_ranks` ranks have called it in this round. Returns the ticks that this rank waited, 0 for the
/// last one.
inline std::uint64_t meet(Meeting& meeting, std::uint32_t num_ranks, bool shares_cores, MeetingCounts& counts) {
    const std::int64_t number = counts.begun + 1;
    counts.begun = number;
    const std::uint32_t current = meeting.round.load(std::memory_order_acquire);
    std::uint64_t waited = 0;
    if (meeting.num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < num_ranks) {
        waited = wait_for_end(meeting, current, shares_cores);
    } else {
        meeting.num_arrived.store(0, std::memory_order_relaxed);
        meeting.round.fetch_add(1);  // before reading num_asleep: a rank increments that before it checks the round
        if (meeting.num_asleep.load() > 0) wake_all(meeting.round);
    }
    counts.left = number;
    return waited;
}
