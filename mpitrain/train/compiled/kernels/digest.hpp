// A digest of memory as each step finds it, in integers alone, so that it is the same on every CPU.
//
//   W words of 32 bits, of which word i is lane i % 16's
#pragma once

#include <cstdint>
#include <cstring>

/// 8 numbers that are added lane by lane, modulo 2^32, on any instruction set; wider ones spill where AVX2 is the
/// widest.
using Lanes = std::uint32_t __attribute__((vector_size(32)));

/// What has been taken in so far; zeros at first. Each lane's `sum` is that of its words, so that a change of any one
/// word changes it; `weighted` adds every partial sum as well, so that changes of several words do not cancel.
/// `KernelDigest` in vectors.py reads this memory.
struct Digest {
    Lanes sum[2], weighted[2];
};

/// Takes in the W words at `memory`: earlier ones are multiplied by an odd number, which loses nothing of them.
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
