// Rows of partial sums: in a rank's own memory, and, with a check of their bits, in the shared memory of a node.
//
//   n parameters      R rows      m sums of batch norm, 0 without it
#pragma once

#include <cstring>

#include "dense_step.hpp"

namespace {

/// The exclusive or of a row's chunks of 32 bytes; any single flipped bit changes it.
using Check = Lanes;

/// Copies memory, of any alignment, and updates `check`. If a row is copied in several calls, all but the last must
/// copy a multiple of 32 bytes.
inline void copy_with_check(void* to, const void* from, std::size_t num_bytes, Check& check) {
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
    Check read = check;
    for (; num_bytes >= sizeof(Lanes); num_bytes -= sizeof(Lanes), source += sizeof(Lanes), target += sizeof(Lanes)) {
        Lanes piece;
        std::memcpy(&piece, source, sizeof piece);
        std::memcpy(target, &piece, sizeof piece);
        read ^= piece;
    }
    if (num_bytes > 0) {
        Lanes last{};
        std::memcpy(&last, source, num_bytes);
        std::memcpy(target, source, num_bytes);
        read ^= last;
    }
    check = read;
}

/// Rows [R][n + m + 3] in this rank's own memory.
struct OwnRows {
    Real* numbers;

    Real* row(std::int64_t r) const { return numbers + r * partial_length; }
    static void copy(Real* to, const Real* from, int count, Check&) {
        std::memcpy(to, from, sizeof(Real) * static_cast<std::size_t>(count));
    }
    static bool has_check(std::int64_t, const Check&) { return true; }
    static void set_check(std::int64_t, const Check&) {}
};

/// Rows [R] of n + m + 3 numbers and their check, each on separate cache lines.
struct SharedRows {
    static constexpr std::int64_t check_at = (partial_length * static_cast<std::int64_t>(sizeof(Real)) + 63) / 64 * 64;
    static constexpr std::int64_t row_bytes = check_at + 64;
    char* memory;

    Real* row(std::int64_t r) const { return reinterpret_cast<Real*>(memory + r * row_bytes); }
    SharedRows from(std::int64_t first) const { return {memory + first * row_bytes}; }
    static void copy(Real* to, const Real* from, int count, Check& check) {
        copy_with_check(to, from, sizeof(Real) * static_cast<std::size_t>(count), check);
    }
    bool has_check(std::int64_t r, const Check& read) const {
        return std::memcmp(memory + r * row_bytes + check_at, &read, sizeof read) == 0;
    }
    void set_check(std::int64_t r, const Check& written) const {
        std::memcpy(memory + r * row_bytes + check_at, &written, sizeof written);
    }
};

/// Copies rows from a rank's own memory into shared memory.
inline void write_rows(const OwnRows& own, const SharedRows& shared, std::int64_t num_rows) {
    for (std::int64_t r = 0; r < num_rows; ++r) {
        Check written{};
        shared.copy(shared.row(r), own.row(r), partial_length, written);
        shared.set_check(r, written);
    }
}

/// Copies a row from shared memory into a rank's own memory. Returns false if it differs from what was written.
inline bool read_row(const SharedRows& shared, const OwnRows& own) {
    Check read{};
    shared.copy(own.row(0), shared.row(0), partial_length, read);
    return shared.has_check(0, read);
}

}  // namespace
