// The frozen samples as the kernel reads them: training samples, held-out samples, and the statistics for both.
//
//   V microbatches of a batch      b rows of a microbatch      F, O inputs and targets
#pragma once

namespace {

/// Training sample i always belongs to microbatch i mod V, and so does held-out sample i.
struct Rows {
    std::vector<Real> inputs, targets, weights;

    std::int64_t count() const { return static_cast<std::int64_t>(weights.size()); }
    SampleAddresses from(std::int64_t row) const {
        return {inputs.data() + row * num_inputs, targets.data() + row * num_targets, weights.data() + row};
    }
    void push(const float* values, Real weight) {
        for (int i = 0; i < num_inputs; ++i) inputs.push_back(static_cast<Real>(values[i]));
        for (int o = 0; o < num_targets; ++o) targets.push_back(static_cast<Real>(values[num_inputs + o]));
        weights.push_back(weight);
    }
};

/// Returns how many of `total` samples belong to microbatch v.
std::int64_t share_of(std::int64_t total, std::int64_t v) {
    return (total - v + num_microbatches - 1) / num_microbatches;
}

struct FrozenSamples {
    Rows training;  // all of them, and a row of padding
    Rows held_out;  // those of microbatch 0, then of 1, and so on
    std::int64_t num_training = 0, num_held_out = 0, num_dropped = 0;
    std::int64_t microbatch_rows = 0, steps_per_epoch = 0;
    Moments moments[num_values];
    Real statistics[2 * num_inputs + 3 * num_targets + 1];

    std::int64_t first_held_out(std::int64_t v) const {
        std::int64_t first = 0;
        for (std::int64_t before = 0; before < v; ++before) first += share_of(num_held_out, before);
        return first;
    }
};

/// Returns whether all values are measurements: magnitudes of 1e29 or more are fill values.
bool is_usable(const Record& one) {
    return std::all_of(one.values, one.values + num_values, [](float value) { return std::fabs(value) < 1e29; });
}

void measure(FrozenSamples& data, const std::vector<Record>& training) {
    for (int c = 0; c < num_values; ++c) {
        std::vector<Moments> parts;
        for (int v = 0; v < num_microbatches; ++v) {
            std::vector<double> values;
            for (std::size_t i = static_cast<std::size_t>(v); i < training.size(); i += num_microbatches)
                values.push_back(static_cast<double>(training[i].values[c]));
            parts.push_back(moments_of(values));
        }
        data.moments[c] = combined_in_tree(parts, merged);
        const Moments& found = data.moments[c];
        const bool is_input = c < num_inputs;
        const int place = is_input ? c : 2 * num_inputs + c - num_inputs, to_std = is_input ? num_inputs : num_targets;
        const bool is_kept = is_input || normalises_targets;
        data.statistics[place] = static_cast<Real>(is_kept ? found.mean : 0);
        data.statistics[place + to_std] = static_cast<Real>(!is_kept || found.is_constant() ? 1.0 : found.std());
    }
    Real* after = data.statistics + 2 * num_inputs + 2 * num_targets;
    std::copy(target_weights, target_weights + num_targets + 1, after);
}

void plan_batches(FrozenSamples& data) {
    const std::int64_t largest = share_of(data.num_training, 0);
    const std::int64_t rows = batch_size == 0 ? largest : (batch_size + num_microbatches - 1) / num_microbatches;
    data.microbatch_rows = std::min(rows, largest);
    data.steps_per_epoch = has_exact_batches ? (data.num_training + batch_size - 1) / batch_size
                                             : (largest + data.microbatch_rows - 1) / data.microbatch_rows;
}

/// The position of a sample in an epoch: the step, and the row of the microbatch.
struct Place {
    std::int64_t step, row;
};

/// Returns the position of sample i of microbatch v. Exact batches contain `batch_size` consecutive samples; other
/// batches contain the same number of samples of each microbatch.
Place place_of(std::int64_t i, std::int64_t v, std::int64_t microbatch_rows) {
    if (!has_exact_batches) return {i / microbatch_rows, i % microbatch_rows};
    const std::int64_t step = (v + i * num_microbatches) / batch_size, start = step * batch_size;
    return {step, i - (start > v ? (start - v + num_microbatches - 1) / num_microbatches : 0)};
}

/// Splits sorted records. If there is no training sample, `num_training` is 0 and no statistics are computed.
FrozenSamples frozen(const std::vector<Record>& records) {
    FrozenSamples data;
    std::vector<Record> training, held_out;
    std::int64_t number = 0;
    for (const Record& one : records) {
        if (is_usable(one)) (is_held_out(number++) ? held_out : training).push_back(one);
    }
    data.num_dropped = static_cast<std::int64_t>(records.size()) - number;
    data.num_training = static_cast<std::int64_t>(training.size());
    data.num_held_out = static_cast<std::int64_t>(held_out.size());
    if (training.empty()) return data;
    const float padding[num_values] = {};
    for (const Record& one : training) data.training.push(one.values, 1);
    data.training.push(padding, 0);
    for (int v = 0; v < num_microbatches; ++v)
        for (std::size_t i = static_cast<std::size_t>(v); i < held_out.size(); i += num_microbatches)
            data.held_out.push(held_out[i].values, 1);
    measure(data, training);
    plan_batches(data);
    return data;
}

}  // namespace
