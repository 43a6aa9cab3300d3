// A dense network with sizes fixed at compile time: forward and backward pass of its layers, a tile of rows at a time.
//
//   R rows of a tile      I, J inputs and outputs of a layer      M, N, K sizes of a product
//
// Activations are row-major and padded: [R][width(I)]. The order of every sum depends on its microbatch only: over the
// inputs for an output, over the rows for a weight. Therefore no bit depends on the number of microbatches in a call.
// The compiler's command line defines the macros REAL (arithmetic.hpp), LAYER_SIZES, HIDDEN, OUTPUT and LOSS, and for
// networks with these layers DROPOUT (the probability), BATCH_NORM (the maximum number of rows of a microbatch),
// LAYER_NORM (1) and RESIDUAL (1).
#pragma once

#include "activations.hpp"
#include "hidden_units.hpp"
#include "layer_norm.hpp"
#include "losses.hpp"
#include "products.hpp"

#ifndef LAYER_SIZES  // for editors: the values of the sea-ice network
#define LAYER_SIZES 7, 16, 1
#define HIDDEN identity
#define OUTPUT sigmoid
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef BATCH_NORM
#define BATCH_NORM 0
#endif
#ifndef LAYER_NORM
#define LAYER_NORM 0
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif

namespace {

constexpr int sizes[] = {LAYER_SIZES};
constexpr int num_layers = sizeof(sizes) / sizeof(sizes[0]) - 1;
constexpr Activation hidden_activation = HIDDEN;
constexpr Activation output_activation = OUTPUT;

constexpr double dropout = DROPOUT;
constexpr bool has_dropout = dropout > 0, has_batch_norm = BATCH_NORM > 0, has_layer_norm = LAYER_NORM > 0;
constexpr bool has_norm = has_batch_norm || has_layer_norm;
static_assert(!(has_batch_norm && has_layer_norm), "a layer has one norm");
constexpr bool has_residual = RESIDUAL > 0;
/// Whether a layer adds its inputs to its outputs: every hidden layer after the first.
constexpr bool is_residual(int l) { return has_residual && l > 0 && l < num_layers - 1; }
/// Whether the outputs of a layer differ from its activations, which are then kept separately.
constexpr bool keeps_active(int l) { return l < num_layers - 1 && (has_dropout || is_residual(l)); }

/// Whether layer l has so many inputs and outputs that its products work on panels of the weights.
constexpr int least_wide_size = 128;
constexpr bool is_wide(int l) { return sizes[l] >= least_wide_size && sizes[l + 1] >= least_wide_size; }
constexpr bool has_wide_layer() {
    bool found = false;
    for (int l = 0; l < num_layers; ++l) found |= is_wide(l);
    return found;
}
constexpr bool only_rectifies(int l) {
    return l < num_layers - 1 && hidden_activation == relu && !has_norm && !has_dropout && !is_residual(l);
}
/// Whether a layer's activation is computed inside its matrix product, and that of its inputs' inside the backward one.
constexpr bool is_rectified_inside(int l) { return only_rectifies(l) && !is_wide(l); }
constexpr bool is_slope_inside(int l) { return only_rectifies(l - 1) && !is_wide(l); }
// The rows of a tile: with wide layers a whole batch, up to a limit, so that the weights are read once; otherwise so
// few that the activations fit in the first level cache. Batch norm needs all rows of a microbatch at once.
constexpr int usual_tile_rows = has_wide_layer() ? 1024 : 64;
constexpr int tile_rows = BATCH_NORM > usual_tile_rows ? (BATCH_NORM + lanes - 1) / lanes* lanes : usual_tile_rows;
constexpr int width(int features) { return (features + lanes - 1) / lanes * lanes; }
constexpr int widest() {
    int most = 0;
    for (const int size : sizes) most = width(size) > most ? width(size) : most;
    return most;
}
/// The distance between rows of activations: not a multiple of 1 KiB, which few sets of a cache would have to hold.
constexpr int row_length = widest() + (widest() % (16 * lanes) == 0 ? lanes : 0);
constexpr int num_parameters() {
    int total = 0;
    for (int l = 0; l < num_layers; ++l) total += sizes[l + 1] * (sizes[l] + 1);
    for (int l = 0; l < num_layers - 1; ++l) total += has_norm ? 2 * sizes[l + 1] : 0;
    return total;
}
/// The number of sums for the running statistics of batch norm, of all hidden layers.
constexpr int num_moments() {
    int total = 0;
    for (int l = 0; l < num_layers - 1; ++l) total += has_batch_norm ? num_norm_sums(sizes[l + 1]) : 0;
    return total;
}
/// The number of units of layer l that batch norm normalises.
constexpr int norm_channels(int l) { return has_batch_norm && l < num_layers - 1 ? sizes[l + 1] : 0; }
/// The offsets of its sums among the sums, and of its running mean and variance among those of all layers.
constexpr int moments_before(int l) {
    int total = 0;
    for (int below = 0; below < l; ++below) total += num_norm_sums(sizes[below + 1]);
    return total;
}
constexpr int running_before(int l) { return moments_before(l) - l; }
// A partial sum holds gradient, moments, loss sum, weight sum and stop flag, in this order.
constexpr int loss_entry = num_parameters() + num_moments(), extra_entries = 3;

/// Whether the rows of a layer's weights are whole vectors: then the products read them from the parameters, and write
/// the gradient to its final place.
constexpr bool has_whole_rows(int l) { return width(sizes[l]) == sizes[l]; }
/// Whether the gradient is computed as [I][width(J)], which is smaller than [J][width(I)] if a layer has few inputs.
constexpr bool is_gradient_transposed(int l) { return sizes[l] * width(sizes[l + 1]) < sizes[l + 1] * width(sizes[l]); }
/// The number of parameters before those of layer l.
constexpr int parameters_before(int l) {
    int total = 0;
    for (int below = 0; below < l; ++below) total += sizes[below + 1] * (sizes[below] + (has_norm ? 3 : 1));
    return total;
}

constexpr int only_if(bool is_needed, int count) { return is_needed ? count : 1; }
/// Whether the products of layer l read a copy of its weights with padded rows, and write a gradient with padded rows.
constexpr bool has_padded_weights(int l) { return !has_whole_rows(l) && !is_wide(l); }

/// The weights of layer l in the layouts that the products read, and the gradient in the layout that they write; the
/// zero padding is never changed. What the layer does not need has one row.
template <int l>
struct Layer {
    static constexpr int I = sizes[l], J = sizes[l + 1], num_norm = has_norm ? width(J) : lanes;
    static constexpr int gradient_rows = is_gradient_transposed(l) ? I : J;
    Real forward[only_if(!is_wide(l), I)][width(J)];
    Real backward[only_if(has_padded_weights(l), J)][width(I)];
    Real bias[width(J)];
    Real weight_gradient[only_if(!has_whole_rows(l), gradient_rows)][width(is_gradient_transposed(l) ? J : I)];
    Real bias_gradient[width(J)];
    // Of a norm: its parameters, their gradients, and the reciprocal standard deviation of each unit or each row.
    Real norm_scale[num_norm], norm_offset[num_norm], norm_scale_gradient[num_norm], norm_offset_gradient[num_norm];
    Real reciprocal_std[has_layer_norm ? tile_rows : num_norm];
};

/// Layer l and the layers above it.
template <int l>
struct LayersFrom : LayersFrom<l + 1> {
    Layer<l> own;
};
template <>
struct LayersFrom<num_layers> {};

/// The mode of a forward pass. In training `keys` are the keys of the dropout of its microbatches, each for
/// `rows_a_key` rows of the tile; the first row of the tile is row `first_row` of its microbatch.
struct Pass {
    bool is_training;
    const std::uint64_t* keys;
    int rows_a_key;
    std::int64_t first_row;
};

struct Workspace {
    LayersFrom<0> layers;
    Real before[num_layers + 1][tile_rows][row_length];  // sums z of each layer
    Real after[num_layers + 1][tile_rows][row_length];   // outputs of each layer; [0] holds the inputs
    Real delta[2][tile_rows][row_length];
    Real kept[only_if(has_dropout, num_layers)][only_if(has_dropout, tile_rows)]
             [row_length];  // dropout's factor of each unit
    Real active[only_if(has_dropout || has_residual, num_layers)][tile_rows]
               [row_length];  // before dropout and residual
    Real normalised[only_if(has_norm, num_layers)][only_if(has_norm, tile_rows)]
                   [row_length];                                           // by a norm, before scale and offset
    Real row_counts[tile_rows];                                            // 1 for a sample, 0 for padding
    Real input_mean[row_length], input_factor[row_length];                 // mean, reciprocal standard deviation
    Real outputs[only_if(has_wide_layer(), widest())][panel_columns];      // of a wide layer, transposed
    Real rows_panel[only_if(has_wide_layer(), tile_rows)][panel_columns];  // some columns of its inputs
    Real through[only_if(has_residual, tile_rows)][row_length];  // derivatives by the outputs of the layer above
    // Members that are not read in whole vectors come last, so that all others are aligned to cache lines.
    Real moments[only_if(has_batch_norm, num_moments())];
    const Real* running;     // mean and variance of each hidden layer with batch norm
    const Real* parameters;  // of all layers
    Real* gradient;          // where the result is written
};

template <int l>
Layer<l>& layer_of(Workspace& work) {
    return static_cast<LayersFrom<l>&>(work.layers).own;
}
template <int l>
const Layer<l>& layer_of(const Workspace& work) {
    return static_cast<const LayersFrom<l>&>(work.layers).own;
}

/// Lays out the weights of layer l and the layers above it; `parameters`, of all layers, must stay valid afterwards.
template <int l = 0>
void spread_weights(Workspace& work, const Real* parameters) {
    constexpr int I = sizes[l], J = sizes[l + 1];
    Layer<l>& layer = layer_of<l>(work);
    const Real* own = parameters + parameters_before(l);
    for (int j = 0; j < J && has_padded_weights(l); ++j) std::memcpy(layer.backward[j], own + j * I, sizeof(Real) * I);
    if constexpr (!is_wide(l)) transpose<J, I>(own, layer.forward);
    own += I * J;
    std::memcpy(layer.bias, own, sizeof(Real) * J);
    if constexpr (has_norm && l < num_layers - 1) {
        std::memcpy(layer.norm_scale, own + J, sizeof(Real) * J);
        std::memcpy(layer.norm_offset, own + 2 * J, sizeof(Real) * J);
    }
    work.parameters = parameters;
    if constexpr (l + 1 < num_layers) spread_weights<l + 1>(work, parameters);
}

/// The weights of layer l as rows [J][I], and the distance between the rows.
template <int l>
const Real* rows_of_weights(const Workspace& work) {
    return has_padded_weights(l) ? layer_of<l>(work).backward[0] : work.parameters + parameters_before(l);
}
template <int l>
constexpr int weights_row = has_padded_weights(l) ? width(sizes[l]) : sizes[l];

/// The address where a layer's gradient is computed.
template <int l>
Real* gradient_of_weights(Workspace& work) {
    return has_whole_rows(l) ? work.gradient + parameters_before(l) : layer_of<l>(work).weight_gradient[0];
}
template <int l>
constexpr int gradient_row = width(is_gradient_transposed(l) ? sizes[l + 1] : sizes[l]);

/// Copies the gradients of layer l and the layers above it to the result, unless they were computed there.
template <int l = 0>
void gather_gradients(const Workspace& work) {
    constexpr int I = sizes[l], J = sizes[l + 1];
    const Layer<l>& layer = layer_of<l>(work);
    Real* gradient = work.gradient + parameters_before(l);
    if constexpr (is_gradient_transposed(l)) {
        transpose_back<I, J>(layer.weight_gradient, gradient);
    } else if constexpr (!has_whole_rows(l)) {
        for (int j = 0; j < J; ++j) std::memcpy(gradient + j * I, layer.weight_gradient[j], sizeof(Real) * I);
    }
    gradient += I * J;
    std::memcpy(gradient, layer.bias_gradient, sizeof(Real) * J);
    if constexpr (has_norm && l < num_layers - 1) {
        std::memcpy(gradient + J, layer.norm_scale_gradient, sizeof(Real) * J);
        std::memcpy(gradient + 2 * J, layer.norm_offset_gradient, sizeof(Real) * J);
    }
    if constexpr (l + 1 < num_layers) {
        gather_gradients<l + 1>(work);
    } else if constexpr (has_batch_norm) {
        std::memcpy(work.gradient + num_parameters(), work.moments, sizeof(work.moments));
    }
}

/// Computes layer l, which has one or two outputs. Vectors run along the inputs, then along the rows, since vectors
/// along the outputs would be nearly empty.
template <int l, Activation kind>
void forward_narrow_layer(Workspace& work, int R) {
    constexpr int I = sizes[l], J = sizes[l + 1], stride = row_length;
    static_assert(tile_rows % register_lanes == 0, "what lies beyond R is computed as well, and left");
    for (int j = 0; j < J; ++j) {
        Real before[tile_rows], after[tile_rows];
        const int num_rows = (R + register_lanes - 1) / register_lanes * register_lanes;
        for (int r = 0; r < num_rows; r += register_lanes)
            dots(work.after[l][r], stride, rows_of_weights<l>(work) + j * weights_row<l>, width(I),
                 layer_of<l>(work).bias[j], before + r);
        for (int r = 0; r < num_rows; ++r) after[r] = activate<kind>(before[r]);
        for (int r = 0; r < R; ++r) work.before[l + 1][r][j] = before[r], work.after[l + 1][r][j] = after[r];
    }
}

/// Applies dropout to the outputs of hidden layer l, and keeps the activations for the backward pass.
template <int l>
void drop_units(Workspace& work, int R, const Pass& pass) {
    constexpr int J = sizes[l + 1];
    for (int r = 0; r < R; ++r) {
        Real* y = work.after[l + 1][r];
        std::memcpy(work.active[l + 1][r], y, sizeof(Real) * J);
        const std::uint64_t key = key_of(pass.keys[r / pass.rows_a_key], l);
        draw_kept(key, pass.first_row + r % pass.rows_a_key, J, dropout, work.kept[l + 1][r]);
        for (int j = 0; j < J; ++j) y[j] *= work.kept[l + 1][r][j];
    }
}

/// Adds the inputs of layer l to its outputs.
template <int l>
void add_inputs(Workspace& work, int R) {
    constexpr int J = sizes[l + 1];
    for (int r = 0; r < R; ++r) {
        Real* y = work.after[l + 1][r];
        if constexpr (!has_dropout) std::memcpy(work.active[l + 1][r], y, sizeof(Real) * J);
        for (int j = 0; j < J; ++j) y[j] += work.after[l][r][j];
    }
}

/// Sets z to the sums of wide layer l. Vectors run along the rows: so the weights are read as they are, without a
/// transposed copy, which would cost as much as products of 16 rows.
template <int l>
void multiply_wide_layer(Workspace& work, int R, Real (*z)[row_length]) {
    constexpr int I = sizes[l], J = sizes[l + 1];
    for (int first = 0; first < R; first += panel_columns) {
        const int N = width(R - first) < panel_columns ? width(R - first) : panel_columns;
        for (int j = 0; j < width(J); ++j)
            for (int n = 0; n < N; ++n) work.outputs[j][n] = layer_of<l>(work).bias[j];
        const auto pack = [&](Panel& panel, int k, int count) {
            transpose_squares(N, width(count), work.after[l][first] + k, row_length, panel[0], panel_columns);
        };
        multiply_by_panels<I, I, panel_columns>(J, N, rows_of_weights<l>(work), pack, work.outputs[0]);
        transpose_squares(width(J), N, work.outputs[0], panel_columns, z[first], row_length);
    }
}

/// Adds to `below` the products of delta with the weights of wide layer l.
template <int l>
void multiply_wide_layer_back(const Workspace& work, int R, const Real* delta, Real (*below)[row_length]) {
    constexpr int I = sizes[l], J = sizes[l + 1];
    for (int first = 0; first < I; first += panel_columns) {
        const int columns = I - first < panel_columns ? I - first : panel_columns;
        const auto pack = [&](Panel& panel, int k, int count) {
            const Real* from = rows_of_weights<l>(work) + k * I + first;
            for (int row = 0; row < count; ++row, from += I) {
                for (int n = columns; n < panel_columns; ++n) panel[row][n] = 0;
                std::memcpy(panel[row], from, sizeof(Real) * static_cast<std::size_t>(columns));
            }
        };
        multiply_by_panels<J, row_length, row_length>(R, width(columns), delta, pack, below[0] + first);
    }
}

template <int l>
void forward_layer(Workspace& work, int R, const Pass& pass) {
    constexpr int I = sizes[l], J = sizes[l + 1], stride = row_length;
    constexpr bool is_hidden = l < num_layers - 1;
    constexpr Activation kind = is_hidden ? hidden_activation : output_activation;
    if constexpr (J <= 2 && !(is_hidden && (has_norm || has_dropout || has_residual))) {
        forward_narrow_layer<l, kind>(work, R);
    } else {
        Real(*z)[stride] = slope_needs_sum(kind) ? work.before[l + 1] : work.after[l + 1];
        Real(*y)[stride] = work.after[l + 1];
        Layer<l>& layer = layer_of<l>(work);
        if constexpr (is_wide(l)) {
            multiply_wide_layer<l>(work, R, z);
        } else {
            const auto finish = [](Vector sums, int, int) { return is_rectified_inside(l) ? rectified(sums) : sums; };
            multiply<I>(R, width(J), I, work.after[l][0], stride, 1, layer.forward[0], width(J), layer.bias, 0, z[0],
                        stride, finish);
        }
        if constexpr (is_hidden && has_layer_norm)
            normalise_rows<J>(z, R, layer.norm_scale, layer.norm_offset, work.normalised[l + 1], layer.reciprocal_std);
        if constexpr (is_hidden && has_batch_norm) {
            const Real* running = work.running + running_before(l);
            if (pass.is_training) {
                normalise_batch<J>(z, work.row_counts, R, layer.norm_scale, layer.norm_offset, running,
                                   work.normalised[l + 1], layer.reciprocal_std, work.moments + moments_before(l));
            } else {
                normalise_by<J>(running, z, R, layer.norm_scale, layer.norm_offset);
            }
        }
        if constexpr (kind != identity && !is_rectified_inside(l)) {
            for (int r = 0; r < R; ++r)
                for (int j = 0; j < J; ++j) y[r][j] = activate<kind>(z[r][j]);
        }
        if constexpr (is_hidden && has_dropout) {
            if (pass.is_training) drop_units<l>(work, R, pass);
        }
        if constexpr (is_residual(l)) add_inputs<l>(work, R);
    }
    if constexpr (l + 1 < num_layers) forward_layer<l + 1>(work, R, pass);
}

/// Computes the gradient of the weights of layer l from R rows; see `backward_layer`.
template <int l>
void add_weight_gradient(Workspace& work, int R, int num_microbatches, bool is_first) {
    constexpr int M = is_gradient_transposed(l) ? sizes[l] : sizes[l + 1], N = gradient_row<l>;
    constexpr int step = is_wide(l) ? panel_columns : N, rows = is_wide(l) ? row_block : run_block;
    constexpr int group = is_wide(l) ? runs_at_once : 1;
    const Real* delta = work.delta[l % 2][0];
    const Real* left = is_gradient_transposed(l) ? work.after[l][0] : delta;
    const Real* right = is_gradient_transposed(l) ? delta : work.after[l][0];
    for (int n = 0; n < N; n += step) {
        const int count = N - n < step ? N - n : step;
        Real* gradient = gradient_of_weights<l>(work) + n;
        const Real* panel = right;
        std::ptrdiff_t panel_row = row_length;
        if constexpr (is_wide(l)) {
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < count; c += register_lanes)
                    store(work.rows_panel[r] + c, load(right + r * row_length + n + c));
            panel = work.rows_panel[0], panel_row = panel_columns;
        }
        const auto multiply_runs = [&](auto runs) {
            multiply_in_runs<tile_rows, M, rows, decltype(runs)::value>(
                M, count, num_microbatches, R / num_microbatches, left, row_length, panel, panel_row, gradient, N);
        };
        if (num_microbatches > 1 && num_microbatches % group == 0) {
            multiply_runs(Constant<group>{});
        } else if (num_microbatches > 1) {
            multiply_runs(Constant<1>{});
        } else {
            multiply<0, M>(M, count, R, left, 1, row_length, panel, panel_row, is_first ? nullptr : gradient, N,
                           gradient, N);
        }
    }
}

/// Computes the gradients of layer l and the layers below it from R rows; they are set by the first tile of a
/// microbatch, and later tiles add to them. With `num_microbatches` above 1 the tile consists of this number of whole
/// microbatches, whose gradients are added in the tree.
template <int l>
void backward_layer(Workspace& work, int R, int num_microbatches, bool is_first) {
    constexpr int I = sizes[l], J = sizes[l + 1], stride = row_length;
    Layer<l>& layer = layer_of<l>(work);
    Real(*delta)[stride] = work.delta[l % 2];
    add_weight_gradient<l>(work, R, num_microbatches, is_first);
    if (num_microbatches > 1) {
        sum_in_runs<tile_rows>(width(J), num_microbatches, R / num_microbatches, delta[0], stride, layer.bias_gradient);
    } else {
        sum_rows(width(J), R, delta[0], stride, is_first, layer.bias_gradient);
    }
    if constexpr (l > 0) {
        Real(*below)[stride] = work.delta[(l + 1) % 2];
        if constexpr (is_wide(l)) {
            const std::size_t size = sizeof(Real) * stride * static_cast<std::size_t>(R);
            if constexpr (is_residual(l)) {
                std::memcpy(below, work.through, size);
            } else {
                std::memset(below, 0, size);
            }
            multiply_wide_layer_back<l>(work, R, delta[0], below);
        } else {
            const auto finish = [&](Vector sums, int r, int i) {
                return is_slope_inside(l) ? sums * slope_of_rectified(load(work.after[l][r] + i)) : sums;
            };
            multiply<J>(R, width(I), J, delta[0], stride, 1, rows_of_weights<l>(work), weights_row<l>,
                        is_residual(l) ? work.through[0] : nullptr, is_residual(l) ? stride : 0, below[0], stride,
                        finish);
        }
        if constexpr (is_residual(l - 1))
            std::memcpy(work.through, below, sizeof(Real) * stride * static_cast<std::size_t>(R));
        if constexpr (has_dropout) {
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < I; ++i) below[r][i] *= work.kept[l][r][i];
        }
        if constexpr (hidden_activation != identity && !is_slope_inside(l)) {
            const Real(*y)[stride] = keeps_active(l - 1) ? work.active[keeps_active(l - 1) ? l : 0] : work.after[l];
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < I; ++i) {
                    const Real delta = below[r][i] * slope<hidden_activation>(work.before[l][r][i], y[r][i]);
                    below[r][i] =
                        hidden_activation == relu ? delta : without_tiny(delta);  // relu gives 0 or an unchanged value
                }
        }
        [[maybe_unused]] Layer<l - 1>& normed = layer_of<l - 1>(work);
        if constexpr (has_layer_norm)
            normalise_rows_backward<I>(below, R, is_first, normed.norm_scale, work.normalised[l], normed.reciprocal_std,
                                       normed.norm_scale_gradient, normed.norm_offset_gradient);
        if constexpr (has_batch_norm)
            normalise_backward<I>(below, work.row_counts, R, normed.norm_scale, work.normalised[l],
                                  normed.reciprocal_std, work.moments[moments_before(l - 1)],
                                  normed.norm_scale_gradient, normed.norm_offset_gradient);
        backward_layer<l - 1>(work, R, num_microbatches, is_first);
    }
}

}  // namespace
