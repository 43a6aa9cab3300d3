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

/// Numbers of a row from number `first` to number `last`, without that one; their check is number `check` of the row.
struct Span {
    int first, last, check;
};
constexpr Span whole_row{0, partial_length, 0};

/// Whether each rank of a node adds a share of the gradient and updates these parameters; all ranks then copy them.
/// For few parameters the second barrier of each step would take longer than all ranks' own additions and updates.
constexpr bool sums_by_shares = num_parameters() >= 32768;
constexpr int most_checks = sums_by_shares ? largest_tree_rows + 1 : 1;

/// Rows [R][n + m + 3] in this rank's own memory.
struct OwnRows {
    Real* numbers;

    Real* row(std::int64_t r) const { return numbers + r * partial_length; }
    static void copy(Real* to, const Real* from, int count, Check&) {
        std::memcpy(to, from, sizeof(Real) * static_cast<std::size_t>(count));
    }
    static bool has_check(std::int64_t, const Check&, int) { return true; }
    static void set_check(std::int64_t, const Check&, int) {}
};

/// Rows [R] of n + m + 3 numbers and their checks, each on separate cache lines.
struct SharedRows {
    static constexpr std::int64_t check_at = (partial_length * static_cast<std::int64_t>(sizeof(Real)) + 63) / 64 * 64;
    static constexpr std::int64_t row_bytes = check_at + (most_checks * std::int64_t{sizeof(Check)} + 63) / 64 * 64;
    char* memory;

    Real* row(std::int64_t r) const { return reinterpret_cast<Real*>(memory + r * row_bytes); }
    SharedRows from(std::int64_t first) const { return {memory + first * row_bytes}; }
    static void copy(Real* to, const Real* from, int count, Check& check) {
        copy_with_check(to, from, sizeof(Real) * static_cast<std::size_t>(count), check);
    }
    bool has_check(std::int64_t r, const Check& read, int number) const {
        return std::memcmp(check(r, number), &read, sizeof read) == 0;
    }
    void set_check(std::int64_t r, const Check& written, int number) const {
        std::memcpy(check(r, number), &written, sizeof written);
    }

  private:
    char* check(std::int64_t r, int number) const {
        return memory + r * row_bytes + check_at + number * static_cast<int>(sizeof(Check));
    }
};

/// Copies a span of the numbers [n + m + 3] at `own` into row r of shared memory; with a wrong check if they are not
/// `intact`, so that all ranks that read them notice.
inline void write_span(const Real* own, const SharedRows& shared, std::int64_t r, Span span, bool intact = true) {
    Check written{};
    shared.copy(shared.row(r) + span.first, own + span.first, span.last - span.first, written);
    shared.set_check(r, intact ? written : ~written, span.check);
}

/// Copies rows from a rank's own memory into shared memory.
inline void write_rows(const OwnRows& own, const SharedRows& shared, std::int64_t num_rows) {
    for (std::int64_t r = 0; r < num_rows; ++r) write_span(own.row(r), shared, r, whole_row);
}

/// Copies a span of row r of shared memory to the numbers at `own`. Returns false if it differs from what was written.
inline bool read_span(const SharedRows& shared, std::int64_t r, Real* own, Span span) {
    Check read{};
    shared.copy(own + span.first, shared.row(r) + span.first, span.last - span.first, read);
    return shared.has_check(r, read, span.check);
}

}  // namespace
