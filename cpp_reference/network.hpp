#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <vector>

// F features, H hidden units, K = 9 H + 1 parameters. y = sigmoid(fc2(act(fc1((x - mean) / std)))).
constexpr std::size_t num_features = 7;

/// One parameter's place in the flat vector of all K.
struct Parameter {
    std::string name;
    std::size_t start;
    std::vector<std::size_t> shape;
    std::size_t size;
};

/// The parameters in their one order everywhere: fc1.weight (H,F), fc1.bias (H), fc2.weight (1,H), fc2.bias (1).
inline std::array<Parameter, 4> parameters_of(std::size_t hidden_size) {
    const std::size_t h = hidden_size, f = num_features;
    return {{{"fc1.weight", 0, {h, f}, h * f},
             {"fc1.bias", h * f, {h}, h},
             {"fc2.weight", h * f + h, {1, h}, h},
             {"fc2.bias", h * f + 2 * h, {1}, 1}}};
}

inline std::size_t num_parameters(std::size_t hidden_size) { return hidden_size * (num_features + 2) + 1; }

/// Weights as they lie in files: double holds every float exactly.
struct Weights {
    std::size_t hidden_size = 0;
    std::vector<double> values;  // (K)
};

/// What the normaliser subtracts and divides by, (F) each.
struct Normalization {
    std::vector<double> mean;
    std::vector<double> std;
};

/// Reads fc1.weight, fc1.bias, fc2.weight, fc2.bias. Throws UserError naming what is missing or misshapen.
Weights read_weights(const std::string& path);
