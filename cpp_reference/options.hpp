#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

enum class EngineKind { torch, plain };
enum class Precision { float32, float64 };
enum class Semantics { reference, standard };
enum class Pole { north, south };
enum class Activation { none, sigmoid, relu, gelu, tanh, silu };
/// How the ranks of a benchmark divide a batch and add their gradients.
enum class Reduction { fixed, any, original };

/// Coefficients of Adam, with torch's defaults.
struct AdamOptions {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
};

/// Settings of one run, from the command line, already checked. An empty path means that the option was not given.
struct Options {
    bool help = false;
    std::string history;
    std::string initial_weights;
    std::string trace;
    std::string batch_order;
    std::string model;
    std::string prediction;
    std::string model_output;
    EngineKind engine = EngineKind::torch;
    Precision precision = Precision::float32;
    Semantics semantics = Semantics::reference;
    Pole pole = Pole::north;
    bool clean_data = true;
    std::optional<std::int64_t> hidden_size;  // default: that of the weights file; 16 with a seed
    std::optional<std::uint64_t> seed;        // if given, the initial weights are drawn
    Activation hidden_activation = Activation::none;
    Activation output_activation = Activation::sigmoid;
    std::optional<std::int64_t> epochs;  // default: 60, or the steps of the batch order
    std::vector<std::int64_t> trace_steps = {1, 10, 100, 1000};
    AdamOptions adam;
    std::optional<std::int64_t> virtual_ranks;  // default: from the batch order, otherwise from the batch size
    bool predict_only = false;
    bool timing = false;
    // Only for a benchmark.
    std::optional<std::int64_t> benchmark;  // steps to time
    std::optional<std::int64_t> warmup;     // steps before them; default: a tenth
    std::optional<std::int64_t> num_samples;
    std::optional<std::int64_t> batch_size;  // global; default: all samples
    std::vector<std::int64_t> network = {7, 16, 1};
    Reduction reduction = Reduction::fixed;
};

/// Reads the flags. Throws UserError if a flag is unknown, missing, repeated or malformed.
Options read_options(int argc, const char* const* argv);

std::string help_text();

const char* name_of(EngineKind engine);
const char* name_of(Precision precision);
const char* name_of(Semantics semantics);
const char* name_of(Pole pole);
const char* name_of(Reduction reduction);
