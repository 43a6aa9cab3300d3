// Conversion between the parameters of a network on fields, in torch's layout, and the weights that its layers read.
//
//   C, O channels of a layer's source and target
#pragma once

#include "field_graph.hpp"

namespace {

/// Calls each(from, to, o, c, k) for the weights of layer l: the index among the parameters, the index in the forward
/// layout, the channels of target and source, and the point of the kernel.
template <int l, typename Each>
void for_each_weight(const Each& each) {
    constexpr int C = inputs_of(l), O = outputs_of(l), side = side_of(l), taps = tap_columns(l);
    constexpr int channels = channel_tiles(l) * channel_tile(l), padded = width(O);
    for (int o = 0; o < O; ++o)
        for (int c = 0; c < C; ++c)
            for (int k = 0; k < side * side; ++k) {
                const int from = (layers[l].kind == widen ? c * O + o : o * C + c) * side * side + k;
                const int row = k / taps, column = k % taps;
                each(from, ((row * channels + source_channel(l, c)) * taps + column) * padded + o, o,
                     source_channel(l, c), k);
            }
}

/// Lays out the terms of a layer's weights for the forward and the backward pass, see winograd.hpp.
template <int l>
void spread_terms(Workspace& work, const Real* own) {
    constexpr int C = inputs_of(l), O = outputs_of(l), channels = source_channels(l), padded = width(O);
    constexpr int back = pixel_of(layers[l].from);
    Real *forward = forward_weights<l>(work), *backward = backward_weights<l>(work);
    for (int o = 0; o < O; ++o)
        for (int c = 0; c < C; ++c) {
            Real terms[num_terms];
            weight_terms(own + (o * C + c) * 9, terms);
            const int from = source_channel(l, c);
            for (int term = 0; term < num_terms; ++term) {
                forward[(term * channels + from) * padded + o] = terms[term];
                backward[(term * O + o) * back + from] = terms[turned_term(term)];
            }
        }
}

/// Computes the derivatives by a layer's weights from the totals of the derivatives by their terms.
template <int l>
void gather_terms(Workspace& work, Real* own) {
    constexpr int C = inputs_of(l), O = outputs_of(l), channels = source_channels(l), padded = width(O);
    const Real* totals = weight_totals<l>(work);
    for (int o = 0; o < O; ++o)
        for (int c = 0; c < C; ++c) {
            Real terms[num_terms];
            for (int term = 0; term < num_terms; ++term)
                terms[term] = totals[(term * channels + source_channel(l, c)) * padded + o];
            weights_of_terms(terms, own + (o * C + c) * 9);
        }
}

/// Lays out the weights of layer l and the layers above it for the products; the zero padding is never changed.
template <int l = 0>
void spread_weights(Workspace& work, const Real* parameters) {
    if constexpr (has_weights(l)) {
        constexpr int C = inputs_of(l), O = outputs_of(l), squares = side_of(l) * side_of(l), taps = tap_columns(l);
        const Real* own = parameters + layers[l].parameters;
        Real *forward = forward_weights<l>(work), *backward = backward_weights<l>(work);
        constexpr int back = layers[l].from == 0 ? 0 : pixel_of(layers[l].from);
        if constexpr (has_terms(l)) spread_terms<l>(work, own);
        for_each_weight<l>([&](int from, int to, int o, int c, int k) {
            if constexpr (has_terms(l)) return;
            if constexpr (layers[l].kind == answer) {
                forward[o * back + c] = own[from];
                return;
            }
            forward[to] = own[from];
            // In the backward pass the kernel of a convolution is rotated by 180 degrees.
            const int turned = layers[l].kind == convolve ? squares - 1 - k : k;
            if constexpr (back > 0) backward[((turned / taps * O + o) * taps + turned % taps) * back + c] = own[from];
        });
        own += O * C * squares;
        std::memcpy(part_of<l>(work, bias), own, sizeof(Real) * O);
        if constexpr (has_norm && layers[l].kind == convolve) {
            std::memcpy(part_of<l>(work, scale), own + O, sizeof(Real) * O);
            std::memcpy(part_of<l>(work, offset), own + 2 * O, sizeof(Real) * O);
        }
    }
    work.parameters = parameters;
    if constexpr (l + 1 < num_layers) spread_weights<l + 1>(work, parameters);
}

/// Sets the totals of all layers' gradients to 0.
template <int l = 0>
void clear_totals(Workspace& work) {
    if constexpr (has_weights(l)) {
        std::memset(weight_totals<l>(work), 0, sizeof(Real) * weights_size(l));
        for (const Part part : {bias_total, scale_total, offset_total})
            std::memset(part_of<l>(work, part), 0, sizeof(Real) * width(outputs_of(l)));
    }
    if constexpr (l + 1 < num_layers) clear_totals<l + 1>(work);
}

/// Copies the gradients of all layers, and batch norm's sums, to the result.
template <int l = 0>
void gather_gradients(Workspace& work) {
    if constexpr (has_weights(l)) {
        constexpr int C = inputs_of(l), O = outputs_of(l), squares = side_of(l) * side_of(l);
        constexpr int row = pixel_of(layers[l].from);
        Real* own = work.gradient + layers[l].parameters;
        const Real* totals = weight_totals<l>(work);
        if constexpr (has_terms(l)) gather_terms<l>(work, own);
        for_each_weight<l>([&](int from, int to, int o, int c, int) {
            if constexpr (!has_terms(l)) own[from] = totals[layers[l].kind == answer ? o * row + c : to];
        });
        own += O * C * squares;
        std::memcpy(own, part_of<l>(work, bias_total), sizeof(Real) * O);
        if constexpr (has_norm && layers[l].kind == convolve) {
            std::memcpy(own + O, part_of<l>(work, scale_total), sizeof(Real) * O);
            std::memcpy(own + 2 * O, part_of<l>(work, offset_total), sizeof(Real) * O);
        }
    }
    if constexpr (l + 1 < num_layers) {
        gather_gradients<l + 1>(work);
    } else {
        std::memcpy(work.gradient + num_parameters(), work.moments, sizeof(Real) * moments_before(num_layers));
    }
}

}  // namespace
