// The choice of held-out samples, and the order of training samples: mpitrain/data/random_streams.py in C++.
#pragma once

namespace {

enum Stream : std::uint64_t { stream_of_validation = 1, stream_of_shuffles = 2, stream_of_steps = 5 };

std::uint64_t state_of(std::initializer_list<std::uint64_t> keys) {
    std::uint64_t state = 0;
    for (const std::uint64_t key : keys) state = sampling::with_key(state, key);
    return state;
}

std::uint64_t word_at(std::uint64_t state, std::int64_t number) { return sampling::hash_of_cell(state, number); }

/// Returns whether the usable sample of this number is held out.
bool is_held_out(std::int64_t number) {
    if (split_start == split_stop) return false;
    const std::uint64_t word = word_at(state_of({split_seed, stream_of_validation}), number);
    const double uniform = static_cast<double>(word >> 11) * 0x1p-53;
    return uniform >= split_start && uniform < split_stop;
}

/// Returns the order of the `count` samples of microbatch v in an epoch.
std::vector<std::int64_t> order_of(std::int64_t epoch, std::int64_t v, std::int64_t count) {
    const std::uint64_t state = state_of(
        {run_seed, stream_of_shuffles, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(v)});
    std::vector<std::pair<std::uint64_t, std::int64_t>> words;
    for (std::int64_t i = 0; i < count; ++i) words.emplace_back(word_at(state, i), i);
    std::sort(words.begin(), words.end());
    std::vector<std::int64_t> order;
    for (const auto& word : words) order.push_back(word.second);
    return order;
}

}  // namespace
