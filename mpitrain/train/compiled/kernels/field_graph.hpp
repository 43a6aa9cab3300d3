// The structure of a network on fields, fixed at compile time, and its layout in a workspace.
//
//   H, W rows and columns of the data      K width of the convolutions      C, O channels of a layer's source and
//   target
//
// A value is a field with channels that are contiguous at each column; each level has half the resolution of the one
// before. Around it are margins of K / 2 rows of zeros, and K / 2 columns of zeros or, if periodic, of the columns of
// the other end. The channels of the input are planes. The compiler's command line defines REAL, HIDDEN, OUTPUT and
// LOSS as for a dense network, FIELD_SIZE (H, W), LEVELS, KERNEL_SIZE, PERIODIC, OUTPUTS, PARAMETERS, the tables VALUES
// and LAYERS (the last layer, and only that, is of kind `answer`), and for networks with these layers DROPOUT (the
// probability) and BATCH_NORM (1).
#pragma once

#include "convolutions.hpp"
#include "hidden_units.hpp"
#include "losses.hpp"
#include "winograd.hpp"

#ifndef LAYERS  // for editors, which parse this file without the command line
#define FIELD_SIZE 6, 8
#define LEVELS 0
#define KERNEL_SIZE 3
#define PERIODIC 1
#define OUTPUTS 2
#define PARAMETERS 122
#define VALUES \
    {0, 3, 1}, { 0, 4, 1 }
#define LAYERS \
    {convolve, 0, 1, 0, 0}, { answer, 1, 0, 0, 112 }
#define HIDDEN relu
#define OUTPUT identity
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef BATCH_NORM
#define BATCH_NORM 0
#endif

namespace {

/// `convolve`: a convolution, then norm, activation and dropout. `pool`: means of 2 x 2 points. `widen`: a transposed
/// convolution of 2 x 2 points with stride 2. `answer`: the last layer, a 1 x 1 convolution and its activation.
enum Kind { convolve, pool, widen, answer };

/// A value of `parts` parts with `channels` channels each; each part is padded to whole vectors.
struct Value {
    int level, channels, parts;
};

/// A layer from value `from` (`pool` reads its first part only) to part `part` of value `to`; its parameters begin at
/// number `parameters`.
struct FieldLayer {
    Kind kind;
    int from, to, part, parameters;
};

constexpr int field_size[] = {FIELD_SIZE}, H = field_size[0], W = field_size[1], K = KERNEL_SIZE, margin = K / 2;
constexpr int num_levels = LEVELS, num_outputs = OUTPUTS;
constexpr bool is_periodic = PERIODIC != 0;
constexpr Value values[] = {VALUES};
constexpr FieldLayer layers[] = {LAYERS};
constexpr int num_values = sizeof(values) / sizeof(values[0]), num_layers = sizeof(layers) / sizeof(layers[0]);
constexpr int num_inputs = values[0].channels;
constexpr Activation hidden_activation = HIDDEN, output_activation = OUTPUT;
constexpr double dropout = DROPOUT;
constexpr bool has_dropout = dropout > 0, has_batch_norm = BATCH_NORM > 0, has_norm = has_batch_norm;
/// Whether the inputs of the activation are kept: sums, or with a norm the normalised sums.
constexpr bool keeps_sums = has_norm || (hidden_activation != relu && hidden_activation != identity);

constexpr int width(int channels) { return (channels + lanes - 1) / lanes * lanes; }
/// The number of channels of a layer's source and target among its parameters, and of its source with padded parts.
constexpr int inputs_of(int l) {
    return values[layers[l].from].channels * (layers[l].kind == pool ? 1 : values[layers[l].from].parts);
}
constexpr int outputs_of(int l) { return layers[l].kind == answer ? num_outputs : values[layers[l].to].channels; }
constexpr int source_channels(int l) {
    const Value& value = values[layers[l].from];
    return value.channels + (value.parts - 1) * width(value.channels);
}
/// The index in the source of channel c of the parameters.
constexpr int source_channel(int l, int c) {
    const int part = values[layers[l].from].channels;
    return c / part * width(part) + c % part;
}

constexpr int num_parameters() { return PARAMETERS; }
/// The number of batch norm's sums, and of its running statistics, in the layers before layer l.
constexpr int moments_before(int l) {
    int total = 0;
    for (int below = 0; below < l; ++below)
        total += has_batch_norm && layers[below].kind == convolve ? num_norm_sums(outputs_of(below)) : 0;
    return total;
}
constexpr int running_before(int l) {
    int total = 0;
    for (int below = 0; below < l; ++below)
        total += has_batch_norm && layers[below].kind == convolve ? 2 * outputs_of(below) : 0;
    return total;
}
constexpr int norm_channels(int l) { return has_batch_norm && layers[l].kind == convolve ? outputs_of(l) : 0; }
// A partial sum holds gradient, moments, loss sum, weight sum and stop flag, in this order.
constexpr int loss_entry = num_parameters() + moments_before(num_layers), extra_entries = 3;
constexpr int tile_rows = 1;  // samples that are computed at once

constexpr int whole(int size) { return (size + (1 << num_levels) - 1) >> num_levels << num_levels; }
/// Rows and columns of a value at a level; those of the data are padded to a multiple of 2^levels.
constexpr int rows_at(int level) { return whole(H) >> level; }
constexpr int columns_at(int level) { return whole(W) >> level; }
/// Whether a layer uses Winograd's filtering, see winograd.hpp: a 3 x 3 convolution, unless it reads the input, whose
/// channels are planes.
constexpr bool has_terms(int l) { return K == 3 && layers[l].kind == convolve && layers[l].from > 0; }
constexpr int tile_at(int level) { return columns_of_tile(columns_at(level), K); }
constexpr int tiles_at(int level) { return (columns_at(level) + tile_at(level) - 1) / tile_at(level); }
/// The number of columns that are written by the tiles of a level, or of the next coarser level when it is widened.
/// Columns beyond the field are overwritten by its margin, or are never read.
constexpr int written_at(int level) {
    const int in_tiles = tiles_at(level) * tile_at(level);
    const int in_segments = 2 * segments_of(columns_at(level)) * tiles_of_segment(columns_at(level));
    const int own = in_tiles > in_segments ? in_tiles : in_segments;
    const int wider = level < num_levels ? 2 * written_at(level + 1) : 0;
    return own > wider ? own : wider;
}

/// The distances, in numbers, between columns, rows and channels of a value, and its size.
constexpr int pixel_of(int value) { return value == 0 ? 1 : values[value].parts * width(values[value].channels); }
constexpr int row_of(int value) { return width(written_at(values[value].level) + 2 * margin) * pixel_of(value); }
constexpr int plane_of(int value) { return (rows_at(values[value].level) + 2 * margin) * row_of(value); }
constexpr int channel_of(int value) { return value == 0 ? plane_of(0) : 1; }
/// The input has additional planes, which a tile of the gradient may read.
constexpr std::int64_t size_of(int value) {
    return std::int64_t{plane_of(value)} * (value == 0 ? num_inputs + num_registers : 1);
}
constexpr std::int64_t values_before(int value) {
    std::int64_t total = 0;
    for (int below = 0; below < value; ++below) total += size_of(below);
    return total;
}
/// The size of all values except the input.
constexpr std::int64_t num_hidden = values_before(num_values) - values_before(1);

constexpr bool has_weights(int l) { return layers[l].kind != pool; }
/// A layer has side x side matrices of weights [C][O]; their gradient is computed in tiles of source channels.
constexpr int side_of(int l) { return layers[l].kind == convolve ? K : layers[l].kind == widen ? 2 : 1; }
constexpr int tap_columns(int l) { return layers[l].kind == convolve ? K : 1; }
constexpr int channel_tile(int l) { return channels_of_tile(source_channels(l), tap_columns(l)); }
constexpr int channel_tiles(int l) { return (source_channels(l) + channel_tile(l) - 1) / channel_tile(l); }
constexpr int square_size(int l) { return width(channel_tiles(l) * channel_tile(l)) * width(outputs_of(l)); }
constexpr int weights_size(int l) { return (has_terms(l) ? num_terms : side_of(l) * side_of(l)) * square_size(l); }
/// Other data of a layer: vectors with one number for each output channel.
enum Part { bias, bias_total, kept, scale, offset, reciprocal_std, scale_total, offset_total, num_parts };
constexpr int layer_size(int l) { return has_weights(l) ? 3 * weights_size(l) + num_parts * width(outputs_of(l)) : 0; }
constexpr int layers_before(int l) {
    int total = 0;
    for (int below = 0; below < l; ++below) total += layer_size(below);
    return total;
}

/// Whether the derivatives by a layer's source are added to those from a later layer, which reads the same value.
constexpr bool adds_to_later(int l) {
    for (int later = l + 1; later < num_layers; ++later)
        if (layers[later].from == layers[l].from) return true;
    return false;
}

constexpr int longest_row() {
    int most = 0;
    for (int l = 0; l < num_layers; ++l) {
        const int row = (columns_at(values[layers[l].from].level) + 2 * K) * width(outputs_of(l));
        most = row > most ? row : most;
    }
    return most;
}
/// The size of the terms of a segment, for the layer that needs most.
constexpr int most_terms() {
    int most = 1;
    for (int l = 0; l < num_layers; ++l) {
        if (!has_terms(l)) continue;
        const int columns = columns_at(values[layers[l].from].level);
        for (const int channels : {pixel_of(layers[l].from), width(outputs_of(l))})
            if (num_terms * term_size(columns, channels) > most) most = num_terms * term_size(columns, channels);
    }
    return most;
}
constexpr int answer_columns = width(columns_at(0));

struct alignas(64) Workspace {
    alignas(64) Real input_mean[num_inputs];
    Real input_factor[num_inputs];
    alignas(64) Real layers[layers_before(num_layers)];
    alignas(64) Real values[values_before(num_values)];
    alignas(64) Real gradients[num_hidden];
    alignas(64) Real sums[keeps_sums ? num_hidden : 1];
    // Of the last layer, as planes: its sums, its activations, and the derivatives by its sums.
    alignas(64) Real before[num_outputs][rows_at(0)][answer_columns];
    alignas(64) Real after[num_outputs][rows_at(0)][answer_columns];
    alignas(64) Real delta[num_outputs][rows_at(0)][answer_columns];
    alignas(64) Real row[longest_row()];      // derivatives of a row, with zeros on both sides
    alignas(64) Real terms[2][most_terms()];  // of a segment: of the first factor; of the second, or their products
    Real moments[moments_before(num_layers) + 1];
    const Real* running;     // mean and variance of each layer with batch norm
    const Real* parameters;  // of all layers
    Real* gradient;          // where the result is written
};

/// Row y, column x of a value, of the derivatives by it, and of the inputs of its activation.
template <int value>
constexpr std::ptrdiff_t place(int y, int x) {
    return values_before(value) + std::ptrdiff_t{y + margin} * row_of(value) + (x + margin) * pixel_of(value);
}
template <int value>
Real* value_at(Workspace& work, int y, int x) {
    return work.values + place<value>(y, x);
}
template <int value>
Real* gradient_at(Workspace& work, int y, int x) {
    return work.gradients + (place<value>(y, x) - values_before(1));
}
template <int value>
Real* sums_at(Workspace& work, int y, int x) {
    return work.sums + (place<value>(y, x) - values_before(1));
}

/// Of layer l: weights [squares][C][O], and [squares][O][C] for the backward pass, their gradients, and its parts.
template <int l>
Real* forward_weights(Workspace& work) {
    return work.layers + layers_before(l);
}
template <int l>
Real* backward_weights(Workspace& work) {
    return forward_weights<l>(work) + weights_size(l);
}
template <int l>
Real* weight_totals(Workspace& work) {
    return forward_weights<l>(work) + 2 * weights_size(l);
}
template <int l>
Real* part_of(Workspace& work, Part part) {
    return forward_weights<l>(work) + 3 * weights_size(l) + part * width(outputs_of(l));
}

}  // namespace
