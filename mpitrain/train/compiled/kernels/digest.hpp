// A digest of memory at the start of each step, computed in integers, so that it is the same on every CPU.
//
//   W words of 32 bits; word i belongs to lane i % 16
#pragma once

#include <cstdint>
#include <cstring>

/// 8 numbers that are added lane by lane, modulo 2^32, on any instruction set; wider vectors would spill to memory on
/// CPUs with AVX2 only.
using Lanes = std::uint32_t __attribute__((vector_size(32)));

/// The digest so far, zeros at first. `sum` of a lane is the sum of its words, so that a change of any one word changes
/// it; `weighted` is the sum of all partial sums, so that changes of several words do not cancel. `KernelDigest` in
/// vectors.py reads this memory.
struct Digest {
    Lanes sum[2], weighted[2];
};

/// Adds the W words at `memory`; the digest so far is multiplied by an odd number, which is invertible modulo 2^32.
inline void add_to_digest(Digest& digest, const void* memory, std::int64_t num_words) {
    constexpr std::uint32_t odd = 2654435761u;
    Lanes sum0{}, sum1{}, weighted0{}, weighted1{}, words0{}, words1{};
    const char* bytes = static_cast<const char*>(memory);
    for (; num_words >= 16; num_words -= 16, bytes += 64) {
        std::memcpy(&words0, bytes, 32);
        std::memcpy(&words1, bytes + 32, 32);
        sum0 += words0, sum1 += words1;
        weighted0 += sum0, weighted1 += sum1;
    }
    char last[64] = {};
    std::memcpy(last, bytes, 4 * static_cast<std::size_t>(num_words));
    std::memcpy(&words0, last, 32);
    std::memcpy(&words1, last + 32, 32);
    sum0 += words0, sum1 += words1;
    weighted0 += sum0, weighted1 += sum1;
    digest.sum[0] = digest.sum[0] * odd + sum0;
    digest.sum[1] = digest.sum[1] * odd + sum1;
    digest.weighted[0] = digest.weighted[0] * odd + weighted0;
    digest.weighted[1] = digest.weighted[1] * odd + weighted1;
}
