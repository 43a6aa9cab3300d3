#pragma once
#include <cstdint>
#include <vector>

#include "history_file.hpp"
#include "options.hpp"

/// Returns the flat indices of the training points, in ascending order. Comparisons are strict, except aice <= 1.
std::vector<std::int64_t> select_points(const History& history, Pole pole, bool clean_data);

/// Returns the points at which all eight values are finite and none is a fill value.
std::vector<std::int64_t> drop_invalid(const History& history, const std::vector<std::int64_t>& points);

/// Throws UserError with the name of the field if one of these points has NaN or a fill value in it.
void check_valid(const History& history, const std::vector<std::int64_t>& points);

/// Samples of one rank or of one virtual rank, in order. N samples, F features.
template <typename Real>
struct Samples {
    std::vector<std::int64_t> index;  // (N) flat grid indices
    std::vector<Real> x;              // (N,F)
    std::vector<Real> y;              // (N)
    std::size_t size() const { return index.size(); }
};

template <typename Real>
Samples<Real> take_samples(const History& history, const std::vector<std::int64_t>& points) {
    Samples<Real> samples;
    samples.index = points;
    samples.x.reserve(points.size() * num_features);
    samples.y.reserve(points.size());
    for (const std::int64_t point : points) {
        const auto i = static_cast<std::size_t>(point);
        for (const std::vector<float>& input : history.inputs) samples.x.push_back(input[i]);
        samples.y.push_back(history.aice[i]);
    }
    return samples;
}
