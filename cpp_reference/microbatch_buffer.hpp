#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine.hpp"
#include "selection.hpp"

/// The rows of one microbatch, copied from the samples of its virtual rank.
template <typename Real>
class MicrobatchBuffer {
  public:
    explicit MicrobatchBuffer(std::size_t rows) : x_(rows * num_features), y_(rows), weight_(rows) {}

    /// slots: one sample index per row; -1 is a row of weight zero with x = 0, y = 0.
    Microbatch<Real> fill(const Samples<Real>& samples, const std::int64_t* slots) {
        for (std::size_t r = 0; r < y_.size(); ++r) {
            Real* row = x_.data() + r * num_features;
            if (slots[r] < 0) {
                std::fill_n(row, num_features, Real{0});
                y_[r] = weight_[r] = 0;
                continue;
            }
            const auto j = static_cast<std::size_t>(slots[r]);
            std::copy_n(samples.x.data() + j * num_features, num_features, row);
            y_[r] = samples.y[j];
            weight_[r] = 1;
        }
        return {y_.size(), x_.data(), y_.data(), weight_.data()};
    }

    Real weight_sum() const {
        Real total = 0;
        for (const Real weight : weight_) total += weight;
        return total;
    }

  private:
    std::vector<Real> x_, y_, weight_;
};
