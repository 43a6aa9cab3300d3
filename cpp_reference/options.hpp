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
/// How a benchmark's ranks share a batch and add their gradients.
enum class Reduction { fixed, any, original };

/// Coefficients of Adam, the same defaults as torch's.
struct AdamOptions {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
};

/// What one run is: the command line, checked once. An empty path means: not asked for.
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
    std::optional<std::int64_t> hidden_size;  // default: what the weights have; 16 of drawn ones
    std::optional<std::uint64_t> seed;        // the first weights are drawn
    Activation hidden_activation = Activation::none;
    Activation output_activation = Activation::sigmoid;
    std::optional<std::int64_t> epochs;  // default: 60, or what the batch order has
    std::vector<std::int64_t> trace_steps = {1, 10, 100, 1000};
    AdamOptions adam;
    std::optional<std::int64_t> virtual_ranks;  // default: what the batch order has, or what the batch has
    bool predict_only = false;
    bool timing = false;
    // Benchmark only.
    std::optional<std::int64_t> benchmark;  // steps that are timed
    std::optional<std::int64_t> warmup;     // steps before them; default: a tenth
    std::optional<std::int64_t> num_samples;
    std::optional<std::int64_t> batch_size;  // global; default: all samples
    std::vector<std::int64_t> network = {7, 16, 1};
    Reduction reduction = Reduction::fixed;
};

/// Reads the flags. Throws UserError for a flag that is unknown, missing, given twice or malformed.
Options read_options(int argc, const char* const* argv);

std::string help_text();

const char* name_of(EngineKind engine);
const char* name_of(Precision precision);
const char* name_of(Semantics semantics);
const char* name_of(Pole pole);
const char* name_of(Reduction reduction);
