// The engine without libtorch for the sea-ice network, 64 rows at a time, in arrays long enough for vector instructions
// (deeper chains: plain_chain.cpp). It is the baseline for the speed of the other engines; a step allocates no memory.
#include "plain_chain.hpp"
#include "plain_tiles.hpp"

namespace {

/// One quantity for the rows of a tile.
template <typename Real>
struct alignas(64) Column {
    Real value[tile_rows];
};

template <typename Real>
Real sum(const Real* a, std::size_t rows) {
    Real total = 0;
#pragma omp simd reduction(+ : total)
    for (std::size_t r = 0; r < rows; ++r) total += a[r];
    return total;
}

template <typename Real>
Real dot(const Real* a, const Real* b, std::size_t rows) {
    Real total = 0;
#pragma omp simd reduction(+ : total)
    for (std::size_t r = 0; r < rows; ++r) total += a[r] * b[r];
    return total;
}

/// Returns the sum of n values, `lanes` of them in parallel, in levels of partial sums: torch's order of addition for
/// sums over columns (ATen/native/cpu/SumKernel.cpp, multi_row_sum and row_sum). The one-pass float32 variance needs
/// this order, since it loses digits by cancellation, and any other order loses others. at(i) returns value i.
template <typename Real, std::size_t lanes, typename ValueAt>
Real cascade_sum(std::size_t n, ValueAt&& at) {
    constexpr std::size_t levels = 4;
    Real partial[levels][lanes] = {};
    const std::size_t groups = n / lanes;
    std::size_t log2_groups = 0;
    while ((std::size_t{1} << log2_groups) < groups) ++log2_groups;
    const std::size_t power = std::max(std::size_t{4}, log2_groups / levels);
    const std::size_t step = std::size_t{1} << power;
    std::size_t i = 0;
    while (i + step <= groups) {
        for (const std::size_t stop = i + step; i < stop; ++i) {
            for (std::size_t k = 0; k < lanes; ++k) partial[0][k] += at(i * lanes + k);
        }
        for (std::size_t level = 1; level < levels; ++level) {
            for (std::size_t k = 0; k < lanes; ++k) {
                partial[level][k] += partial[level - 1][k];
                partial[level - 1][k] = 0;
            }
            if ((i & ((step - 1) << (level * power))) != 0) break;
        }
    }
    for (; i < groups; ++i) {
        for (std::size_t k = 0; k < lanes; ++k) partial[0][k] += at(i * lanes + k);
    }
    for (std::size_t level = 1; level < levels; ++level) {
        for (std::size_t k = 0; k < lanes; ++k) partial[0][k] += partial[level][k];
    }
    for (i = groups * lanes; i < n; ++i) partial[0][0] += at(i);
    for (std::size_t k = 1; k < lanes; ++k) partial[0][0] += partial[0][k];
    return partial[0][0];
}

/// Prevents the compiler from fusing a product with the addition that follows: torch rounds x * x first.
template <typename Real>
Real rounded(Real value) {
    volatile Real copy = value;
    return copy;
}

template <typename Real>
class PlainEngine final : public PlainTiles<Real> {
  public:
    PlainEngine(const Weights& weights, const Options& options)
        : PlainTiles<Real>(weights, options),
          hidden_size_(weights.sizes[1]),
          activation_(options.hidden_activation),
          hidden_(weights.sizes[1]),
          slope_(weights.sizes[1]) {
        for (Column<Real>& column : slope_) std::fill_n(column.value, tile_rows, Real{1});
    }

  private:
    using PlainTiles<Real>::weights_;
    using PlainTiles<Real>::mean_;
    using PlainTiles<Real>::std_;

    Real accumulate(const Microbatch<Real>& microbatch, Real scale, Real* gradient) override {
        std::fill_n(gradient, weights_.size(), Real{0});
        Real loss = 0;
        this->for_each_tile(microbatch.x, microbatch.rows, [&](std::size_t start, std::size_t rows) {
            loss += run_backward(microbatch.y + start, microbatch.weight ? microbatch.weight + start : nullptr, rows,
                                 scale, gradient);
        });
        return loss;
    }

    Real output_of(std::size_t r) const override { return output_.value[r]; }

    /// Stores x (rows,F) as normalised columns.
    void load(const Real* x, std::size_t rows) {
        for (std::size_t f = 0; f < num_features; ++f) {
            Real* column = input_[f].value;
            const Real mean = mean_[f], std = std_[f];
            for (std::size_t r = 0; r < rows; ++r) column[r] = (x[r * num_features + f] - mean) / std;
        }
    }

    /// x -> input_, hidden_, slope_, output_
    void run(const Real* x, std::size_t rows) override {
        load(x, rows);
        const Real* w1 = weights_.data();                   // (H,F)
        const Real* b1 = w1 + hidden_size_ * num_features;  // (H)
        const Real* w2 = b1 + hidden_size_;                 // (H)
        Real* output = output_.value;
        std::fill_n(output, rows, w2[hidden_size_]);
        for (std::size_t h = 0; h < hidden_size_; ++h) {
            Real* hidden = hidden_[h].value;
            const Real* w = w1 + h * num_features;
#pragma omp simd
            for (std::size_t r = 0; r < rows; ++r) {
                Real z = b1[h];
                for (std::size_t f = 0; f < num_features; ++f) z += w[f] * input_[f].value[r];
                hidden[r] = z;
            }
            if (activation_ != Activation::none) activate(activation_, hidden, slope_[h].value, rows);
            for (std::size_t r = 0; r < rows; ++r) output[r] += w2[h] * hidden[r];
        }
        for (std::size_t r = 0; r < rows; ++r) output[r] = sigmoid(output[r]);
    }

    /// Adds this tile's part to gradient (K); returns the sum of its weighted squared errors.
    Real run_backward(const Real* y, const Real* weight, std::size_t rows, Real scale, Real* gradient) {
        Real* g1 = gradient;
        Real* gb1 = g1 + hidden_size_ * num_features;
        Real* g2 = gb1 + hidden_size_;
        const Real* w2 = weights_.data() + (g2 - gradient);
        Real* error = error_.value;
        Real* delta = delta_.value;
        for (std::size_t r = 0; r < rows; ++r) {
            const Real out = output_.value[r];
            const Real difference = out - y[r], w = weight ? weight[r] : 1;
            error[r] = w * difference * difference;
            delta[r] = scale * w * difference * out * (1 - out);
        }
        g2[hidden_size_] += sum(delta, rows);
        for (std::size_t h = 0; h < hidden_size_; ++h) {
            g2[h] += dot(delta, hidden_[h].value, rows);
            Real* delta_hidden = delta_hidden_.value;
            const Real* slope = slope_[h].value;
            for (std::size_t r = 0; r < rows; ++r) delta_hidden[r] = delta[r] * w2[h] * slope[r];
            gb1[h] += sum(delta_hidden, rows);
            for (std::size_t f = 0; f < num_features; ++f) {
                g1[h * num_features + f] += dot(delta_hidden, input_[f].value, rows);
            }
        }
        return sum(error, rows);
    }

    /// dy/dx = y (1 - y) sum_h w2_h slope_h w1_hf / std_f
    void append_prediction(std::size_t rows, Prediction& prediction) override {
        const Real* w1 = weights_.data();
        const Real* w2 = w1 + hidden_size_ * (num_features + 1);
        for (std::size_t r = 0; r < rows; ++r) {
            const Real y = output_.value[r];
            prediction.y.push_back(static_cast<double>(y));
            for (std::size_t f = 0; f < num_features; ++f) {
                Real through = 0;
                for (std::size_t h = 0; h < hidden_size_; ++h) {
                    through += w2[h] * slope_[h].value[r] * w1[h * num_features + f];
                }
                prediction.jacobian.push_back(static_cast<double>(y * (1 - y) * through / std_[f]));
            }
        }
    }

    std::size_t hidden_size_;
    Activation activation_;
    Column<Real> input_[num_features], output_, error_, delta_, delta_hidden_;
    std::vector<Column<Real>> hidden_, slope_;  // (H)
};

}  // namespace

template <typename Real>
std::unique_ptr<Engine<Real>> make_plain_engine(const Weights& weights, const Options& options) {
    const bool is_sea_ice_network = weights.sizes.size() == 3 && options.output_activation == Activation::sigmoid;
    if (!is_sea_ice_network) return make_plain_chain<Real>(weights, options);
    return std::make_unique<PlainEngine<Real>>(weights, options);
}

template <typename Real>
ColumnSums<Real> plain_column_sums(const std::vector<Real>& x) {
    ColumnSums<Real> sums;
    const std::size_t n = x.size() / num_features;
    for (std::size_t f = 0; f < num_features; ++f) {
        const auto value = [&x, f](std::size_t i) { return x[i * num_features + f]; };
        const auto square = [&x, f](std::size_t i) {
            return rounded(x[i * num_features + f] * x[i * num_features + f]);
        };
        // torch adds the first four of the seven columns together, and each of the other three in four lanes.
        sums.x.push_back(f < 4 ? cascade_sum<Real, 1>(n, value) : cascade_sum<Real, 4>(n, value));
        sums.x_squared.push_back(f < 4 ? cascade_sum<Real, 1>(n, square) : cascade_sum<Real, 4>(n, square));
    }
    return sums;
}

template ColumnSums<float> plain_column_sums(const std::vector<float>&);
template ColumnSums<double> plain_column_sums(const std::vector<double>&);
template std::unique_ptr<Engine<float>> make_plain_engine(const Weights&, const Options&);
template std::unique_ptr<Engine<double>> make_plain_engine(const Weights&, const Options&);
