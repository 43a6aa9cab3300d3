// The engine without libtorch for chains of any depth, 64 rows at a time. All three products of a layer have the same
// form, sums of factor times row, so that vector instructions run along the units of a layer.
//   T rows of a tile      I, O inputs and outputs of a layer; stored rows are padded to whole vectors
#include "plain_chain.hpp"

#include "plain_tiles.hpp"

namespace {

#ifdef __AVX512F__
constexpr std::size_t vector_bytes = 64, row_block = 8;
#else
constexpr std::size_t vector_bytes = 32, row_block = 4;
#endif
template <typename Real>
constexpr std::size_t lanes = vector_bytes / sizeof(Real);
template <typename Real>
using Vector __attribute__((vector_size(vector_bytes), aligned(sizeof(Real)), may_alias)) = Real;

template <typename Real>
std::size_t width_of(std::size_t units) {
    return (units + lanes<Real> - 1) / lanes<Real> * lanes<Real>;
}

/// Matrix with element (m, k) at start[m * row + k * column].
template <typename Real>
struct Strided {
    const Real* start;
    std::size_t row, column;
};

/// c (rows, vectors * lanes) += a (rows, depth) b (depth, ...), all of c in registers.
template <typename Real, std::size_t rows, std::size_t vectors>
void multiply_block(const Strided<Real>& a, std::size_t depth, const Real* b, std::size_t b_row, Real* c,
                    std::size_t c_row) {
    const auto at = [](auto* start, std::size_t v) { return start + v * lanes<Real>; };
    Vector<Real> sum[rows][vectors];
    for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t v = 0; v < vectors; ++v) {
            sum[r][v] = *reinterpret_cast<const Vector<Real>*>(at(c + r * c_row, v));
        }
    }
    for (std::size_t k = 0; k < depth; ++k) {
        Vector<Real> row[vectors];
        for (std::size_t v = 0; v < vectors; ++v) {
            row[v] = *reinterpret_cast<const Vector<Real>*>(at(b + k * b_row, v));
        }
        for (std::size_t r = 0; r < rows; ++r) {
            const Real factor = a.start[r * a.row + k * a.column];
            for (std::size_t v = 0; v < vectors; ++v) sum[r][v] += factor * row[v];
        }
    }
    for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t v = 0; v < vectors; ++v) {
            *reinterpret_cast<Vector<Real>*>(at(c + r * c_row, v)) = sum[r][v];
        }
    }
}

template <typename Real, std::size_t rows>
void multiply_rows(const Strided<Real>& a, std::size_t depth, const Real* b, Real* c, std::size_t width) {
    std::size_t n = 0;
    for (; n + 2 * lanes<Real> <= width; n += 2 * lanes<Real>) {
        multiply_block<Real, rows, 2>(a, depth, b + n, width, c + n, width);
    }
    if (n < width) multiply_block<Real, rows, 1>(a, depth, b + n, width, c + n, width);
}

/// c (M, width) += a (M, depth) b (depth, width); width is a multiple of the lanes.
template <typename Real>
void multiply(std::size_t num_rows, Strided<Real> a, std::size_t depth, const Real* b, Real* c, std::size_t width) {
    std::size_t m = 0;
    for (; m + row_block <= num_rows; m += row_block, a.start += row_block * a.row) {
        multiply_rows<Real, row_block>(a, depth, b, c + m * width, width);
    }
    for (; m < num_rows; ++m, a.start += a.row) multiply_rows<Real, 1>(a, depth, b, c + m * width, width);
}

/// Weights of one layer in the layouts of the products, and the layer's results for a tile.
template <typename Real>
struct Layer {
    std::size_t inputs, outputs, start;  // start: of its weights in the flat vector (K)
    std::size_t input_width, output_width;
    Activation activation;
    std::vector<Real> weight;      // (O,I)
    std::vector<Real> transposed;  // (I,O)
    std::vector<Real> bias;        // (O)
    std::vector<Real> output;      // (T,O)
    std::vector<Real> slope;       // (T,O)
    std::vector<Real> delta;       // (T,O): the loss by what goes into the activation
    std::vector<Real> gradient;    // (O,I)
    std::vector<Real> bias_sums;   // (O)

    Layer(std::size_t num_inputs, std::size_t num_outputs, std::size_t first_weight, Activation act)
        : inputs(num_inputs),
          outputs(num_outputs),
          start(first_weight),
          input_width(width_of<Real>(num_inputs)),
          output_width(num_outputs == 1 ? 1 : width_of<Real>(num_outputs)),
          activation(act),
          weight(outputs * input_width),
          transposed(inputs * output_width),
          bias(output_width),
          output(tile_rows * output_width),
          slope(tile_rows * output_width, Real{1}),
          delta(tile_rows * output_width),
          gradient(outputs * input_width),
          bias_sums(output_width) {}

    /// flat (K) -> weight, transposed, bias
    void take_weights(const Real* flat) {
        for (std::size_t o = 0; o < outputs; ++o) {
            std::copy_n(flat + start + o * inputs, inputs, &weight[o * input_width]);
            for (std::size_t i = 0; i < inputs; ++i) transposed[i * output_width + o] = weight[o * input_width + i];
        }
        std::copy_n(flat + start + outputs * inputs, outputs, bias.data());
    }

    /// x (rows,I) -> output, slope
    void forward(const Real* x, std::size_t rows) {
        for (std::size_t r = 0; r < rows; ++r) {
            Real* z = &output[r * output_width];
            std::copy_n(bias.data(), output_width, z);
            if (outputs == 1) z[0] += dot(x + r * input_width, weight.data());  // one lane of a vector would do all
        }
        if (outputs > 1)
            multiply<Real>(rows, {x, input_width, 1}, inputs, transposed.data(), output.data(), output_width);
        activate(activation, output.data(), slope.data(), rows * output_width);
    }

    Real dot(const Real* a, const Real* b) const {
        Real total = 0;
#pragma omp simd reduction(+ : total)
        for (std::size_t i = 0; i < inputs; ++i) total += a[i] * b[i];
        return total;
    }

    /// Adds delta^T x (O,I) and the column sums of delta.
    void add_gradient(const Real* x, std::size_t rows) {
        multiply<Real>(outputs, {delta.data(), 1, output_width}, rows, x, gradient.data(), input_width);
        for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t o = 0; o < output_width; ++o) bias_sums[o] += delta[r * output_width + o];
        }
    }

    /// dx (rows,I) = delta weight
    void propagate(Real* dx, std::size_t rows) const {
        std::fill_n(dx, rows * input_width, Real{0});
        multiply<Real>(rows, {delta.data(), output_width, 1}, outputs, weight.data(), dx, input_width);
    }

    void clear_gradient() {
        std::fill(gradient.begin(), gradient.end(), Real{0});
        std::fill(bias_sums.begin(), bias_sums.end(), Real{0});
    }

    void give_gradient(Real* flat) const {
        for (std::size_t o = 0; o < outputs; ++o) {
            std::copy_n(&gradient[o * input_width], inputs, flat + start + o * inputs);
        }
        std::copy_n(bias_sums.data(), outputs, flat + start + outputs * inputs);
    }
};

template <typename Real>
class PlainChain final : public PlainTiles<Real> {
  public:
    PlainChain(const Weights& weights, const Options& options)
        : PlainTiles<Real>(weights, options),
          input_width_(width_of<Real>(num_features)),
          input_(tile_rows * input_width_),
          input_delta_(tile_rows * input_width_) {
        std::size_t start = 0;
        for (std::size_t l = 1; l < weights.sizes.size(); ++l) {
            const bool is_last = l + 1 == weights.sizes.size();
            layers_.emplace_back(weights.sizes[l - 1], weights.sizes[l], start,
                                 is_last ? options.output_activation : options.hidden_activation);
            start += weights.sizes[l] * (weights.sizes[l - 1] + 1);
        }
        take_weights();
    }

    void adam_step(const Real* gradient) override {
        PlainTiles<Real>::adam_step(gradient);
        take_weights();
    }

  private:
    using PlainTiles<Real>::weights_;
    using PlainTiles<Real>::mean_;
    using PlainTiles<Real>::std_;

    void take_weights() {
        for (Layer<Real>& layer : layers_) layer.take_weights(weights_.data());
    }

    Real output_of(std::size_t r) const override { return layers_.back().output[r * layers_.back().output_width]; }

    const Real* input_of(std::size_t l) const { return l == 0 ? input_.data() : layers_[l - 1].output.data(); }

    Real accumulate(const Microbatch<Real>& microbatch, Real scale, Real* gradient) override {
        for (Layer<Real>& layer : layers_) layer.clear_gradient();
        Real loss = 0;
        this->for_each_tile(microbatch.x, microbatch.rows, [&](std::size_t start, std::size_t rows) {
            loss += differentiate(microbatch.y + start, microbatch.weight ? microbatch.weight + start : nullptr, rows,
                                  scale);
            run_backward(rows, [rows](Layer<Real>& layer, const Real* x) { layer.add_gradient(x, rows); });
        });
        for (const Layer<Real>& layer : layers_) layer.give_gradient(gradient);
        return loss;
    }

    void run(const Real* x, std::size_t rows) override {
        for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t f = 0; f < num_features; ++f) {
                input_[r * input_width_ + f] = (x[r * num_features + f] - mean_[f]) / std_[f];
            }
        }
        for (std::size_t l = 0; l < layers_.size(); ++l) layers_[l].forward(input_of(l), rows);
    }

    /// Computes the last layer's delta from the targets; returns the sum of the weighted squared errors.
    Real differentiate(const Real* y, const Real* weight, std::size_t rows, Real scale) {
        Layer<Real>& last = layers_.back();
        Real loss = 0;
        for (std::size_t r = 0; r < rows; ++r) {
            const Real difference = output_of(r) - y[r], w = weight ? weight[r] : 1;
            loss += w * difference * difference;
            last.delta[r * last.output_width] = scale * w * difference * last.slope[r * last.output_width];
        }
        return loss;
    }

    /// Propagates the last layer's delta to all others; calls visit(layer, its input) once a layer's delta is known.
    template <typename Visit>
    void run_backward(std::size_t rows, Visit&& visit) {
        for (std::size_t l = layers_.size(); l-- > 0;) {
            visit(layers_[l], input_of(l));
            if (l == 0) return;
            Layer<Real>& below = layers_[l - 1];
            layers_[l].propagate(below.delta.data(), rows);
            if (below.activation == Activation::none) continue;
            for (std::size_t i = 0; i < rows * below.output_width; ++i) below.delta[i] *= below.slope[i];
        }
    }

    void append_prediction(std::size_t rows, Prediction& prediction) override {
        Layer<Real>& last = layers_.back();
        last.delta = last.slope;
        run_backward(rows, [](const Layer<Real>&, const Real*) {});
        layers_[0].propagate(input_delta_.data(), rows);
        for (std::size_t r = 0; r < rows; ++r) {
            prediction.y.push_back(static_cast<double>(output_of(r)));
            for (std::size_t f = 0; f < num_features; ++f) {
                prediction.jacobian.push_back(static_cast<double>(input_delta_[r * input_width_ + f] / std_[f]));
            }
        }
    }

    std::size_t input_width_;
    std::vector<Real> input_, input_delta_;  // (T,F)
    std::vector<Layer<Real>> layers_;
};

}  // namespace

template <typename Real>
std::unique_ptr<Engine<Real>> make_plain_chain(const Weights& weights, const Options& options) {
    return std::make_unique<PlainChain<Real>>(weights, options);
}

template std::unique_ptr<Engine<float>> make_plain_chain(const Weights&, const Options&);
template std::unique_ptr<Engine<double>> make_plain_chain(const Weights&, const Options&);
