#pragma once
#include <cstddef>
#include <string>
#include <vector>

// F features, L layers, K parameters. y = out(fcL(act(... act(fc1((x - mean) / std))))), one output.
constexpr std::size_t num_features = 7;

/// Units of each level: (F, H, 1) is the sea-ice network; (F, H1, H2, 1) has one more hidden layer.
using Sizes = std::vector<std::size_t>;

/// Name and shape of one parameter, and its position in the flat vector of all K.
struct Parameter {
    std::string name;
    std::size_t start;
    std::vector<std::size_t> shape;
    std::size_t size;
};

/// The parameters, in the same order everywhere: fc1.weight (H1,F), fc1.bias (H1), fc2.weight (H2,H1), ...
inline std::vector<Parameter> parameters_of(const Sizes& sizes) {
    std::vector<Parameter> parameters;
    std::size_t start = 0;
    for (std::size_t l = 1; l < sizes.size(); ++l) {
        const std::string layer = "fc" + std::to_string(l);
        const std::size_t weights = sizes[l] * sizes[l - 1];
        parameters.push_back({layer + ".weight", start, {sizes[l], sizes[l - 1]}, weights});
        parameters.push_back({layer + ".bias", start + weights, {sizes[l]}, sizes[l]});
        start += weights + sizes[l];
    }
    return parameters;
}

inline std::size_t num_parameters(const Sizes& sizes) {
    std::size_t count = 0;
    for (std::size_t l = 1; l < sizes.size(); ++l) count += sizes[l] * (sizes[l - 1] + 1);
    return count;
}

/// Weights of any precision: double represents every float exactly.
struct Weights {
    Sizes sizes;
    std::vector<double> values;  // (K)
};

/// Mean, which the normalisation subtracts, and standard deviation, by which it divides; (F) each.
struct Normalization {
    std::vector<double> mean;
    std::vector<double> std;
};

/// Reads fc1.weight, fc1.bias, fc2.weight, ... Throws UserError with the variable that is missing or has a wrong shape.
Weights read_weights(const std::string& path);
