// Measurement of the peak rate of multiply-adds of this core, to which the rate of a step is compared.
#include <chrono>

#include "arithmetic.hpp"

namespace {

// More independent sums than a core executes at a time, but not more than fit in its registers.
constexpr int num_chains = register_bytes == 64 ? 24 : 12, turns_a_look = 20000;

/// Computes `turns_a_look` fused multiply-adds in each chain, all in registers. The result depends on all of them.
Real turn_chains(Real start) {
    Vector sums[num_chains], factor = spread(start), addend = spread(start);
    for (int c = 0; c < num_chains; ++c) sums[c] = spread(start + static_cast<Real>(c));
    for (int turn = 0; turn < turns_a_look; ++turn)
#pragma GCC unroll 24
        for (int c = 0; c < num_chains; ++c) sums[c] = fused(factor, addend, sums[c]);  // each stays in its register
    Vector total{};
    for (int c = 0; c < num_chains; ++c) total += sums[c];
    Real sum = 0;
    for (int lane = 0; lane < register_lanes; ++lane) sum += total[lane];
    return sum;
}

}  // namespace

extern "C" {

/// Returns the largest number of multiply-adds per second of parts of about a millisecond, measured for `seconds`:
/// other processes make some parts slower, and none faster. `start` is 0, which the compiler cannot know.
double most_multiply_adds_a_second(double seconds, double start) {
    const IeeeArithmetic here;
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point before) {
        return std::chrono::duration<double>(Clock::now() - before).count();
    };
    constexpr double work = double{turns_a_look} * num_chains * register_lanes;
    double most = 0;
    volatile Real seen = 0;
    for (const auto begun = Clock::now(); since(begun) < seconds;) {
        const auto before = Clock::now();
        seen = seen + turn_chains(static_cast<Real>(start));
        const double rate = work / since(before);
        most = rate > most ? rate : most;
    }
    return most;
}
}
