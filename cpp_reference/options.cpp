#include "options.hpp"

#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "engine.hpp"
#include "errors.hpp"

namespace {

const std::vector<std::string> engine_names = {"torch", "plain"};
const std::vector<std::string> precision_names = {"float32", "float64"};
const std::vector<std::string> semantics_names = {"reference", "standard"};
const std::vector<std::string> pole_names = {"north", "south"};
const std::vector<std::string> activation_names = {"none", "sigmoid", "relu", "gelu", "tanh", "silu"};
const std::vector<std::string> reduction_names = {"fixed", "any", "original"};

[[noreturn]] void refuse(const std::string& flag, const std::string& value, const std::string& allowed) {
    throw UserError("--" + flag + " " + value + ": not allowed; give " + allowed);
}

/// Returns the enumerator at the position of the value in the list of allowed names.
template <typename Choice>
Choice read_choice(const std::string& flag, const std::string& value, const std::vector<std::string>& names) {
    std::string allowed;
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i] == value) return static_cast<Choice>(i);
        allowed += (i == 0 ? "" : " or ") + names[i];
    }
    refuse(flag, value, allowed);
}

bool read_bool(const std::string& flag, const std::string& value) {
    if (value != "true" && value != "false") refuse(flag, value, "true or false");
    return value == "true";
}

std::int64_t read_count(const std::string& flag, const std::string& value) {
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
    if (error != std::errc() || end != value.data() + value.size() || count < 1) {
        refuse(flag, value, "a whole number of at least 1");
    }
    return count;
}

void read_seed(Options& options, const std::string& flag, const std::string& value) {
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seed);
    if (error != std::errc() || end != value.data() + value.size()) refuse(flag, value, "a whole number from 0");
    options.seed = seed;
}

std::vector<std::int64_t> read_counts(const std::string& flag, const std::string& value) {
    std::vector<std::int64_t> counts;
    for (std::size_t start = 0; start <= value.size();) {
        const std::size_t end = std::min(value.find(',', start), value.size());
        const std::int64_t count = read_count(flag, value.substr(start, end - start));
        if (!counts.empty() && count <= counts.back()) refuse(flag, value, "steps in ascending order, like 1,10,100");
        counts.push_back(count);
        start = end + 1;
    }
    return counts;
}

/// Reads the units of each level, such as 7-64-64-1.
std::vector<std::int64_t> read_network(const std::string& flag, const std::string& value) {
    std::vector<std::int64_t> sizes;
    for (std::size_t start = 0; start <= value.size();) {
        const std::size_t end = std::min(value.find('-', start), value.size());
        sizes.push_back(read_count(flag, value.substr(start, end - start)));
        start = end + 1;
    }
    if (sizes.size() < 3 || sizes.front() != static_cast<std::int64_t>(num_features) || sizes.back() != 1) {
        refuse(flag, value, "units of each level from 7 to 1, like 7-64-64-1");
    }
    return sizes;
}

/// Reads a number, or "full" for all samples.
void read_batch_size(Options& options, const std::string& flag, const std::string& value) {
    if (value == "full") return;
    options.batch_size = read_count(flag, value);
}

double read_number(const std::string& flag, const std::string& value, double minimum, double limit) {
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool complete = error == std::errc() && end == value.data() + value.size();
    if (!complete || !(number >= minimum) || !(number < limit)) {
        refuse(flag, value, limit == 1 ? "a number from 0 to below 1" : "a finite number that is not negative");
    }
    return number;
}

using Setter = std::function<void(Options&, const std::string& flag, const std::string& value)>;

Setter path_setter(std::string Options::*path) {
    return [path](Options& options, const std::string&, const std::string& value) { options.*path = value; };
}

Setter adam_setter(double AdamOptions::*number, double limit) {
    return [number, limit](Options& options, const std::string& flag, const std::string& value) {
        options.adam.*number = read_number(flag, value, 0, limit);
    };
}

Setter count_setter(std::optional<std::int64_t> Options::*count) {
    return [count](Options& options, const std::string& flag, const std::string& value) {
        options.*count = read_count(flag, value);
    };
}

Setter bool_setter(bool Options::*toggle) {
    return [toggle](Options& options, const std::string& flag, const std::string& value) {
        options.*toggle = read_bool(flag, value);
    };
}

template <typename Choice>
Setter choice_setter(Choice Options::*choice, const std::vector<std::string>& names) {
    return [choice, &names](Options& options, const std::string& flag, const std::string& value) {
        options.*choice = read_choice<Choice>(flag, value, names);
    };
}

const std::map<std::string, Setter>& setters() {
    static const std::map<std::string, Setter> table = {
        {"history", path_setter(&Options::history)},
        {"initial-weights", path_setter(&Options::initial_weights)},
        {"trace", path_setter(&Options::trace)},
        {"batch-order", path_setter(&Options::batch_order)},
        {"model", path_setter(&Options::model)},
        {"prediction", path_setter(&Options::prediction)},
        {"model-output", path_setter(&Options::model_output)},
        {"engine", choice_setter(&Options::engine, engine_names)},
        {"precision", choice_setter(&Options::precision, precision_names)},
        {"semantics", choice_setter(&Options::semantics, semantics_names)},
        {"pole", choice_setter(&Options::pole, pole_names)},
        {"clean-data", bool_setter(&Options::clean_data)},
        {"hidden-size", count_setter(&Options::hidden_size)},
        {"seed", read_seed},
        {"hidden-activation", choice_setter(&Options::hidden_activation, activation_names)},
        {"output-activation", choice_setter(&Options::output_activation, activation_names)},
        {"epochs", count_setter(&Options::epochs)},
        {"trace-steps",
         [](Options& o, const std::string& f, const std::string& v) { o.trace_steps = read_counts(f, v); }},
        {"learning-rate", adam_setter(&AdamOptions::learning_rate, HUGE_VAL)},
        {"beta1", adam_setter(&AdamOptions::beta1, 1)},
        {"beta2", adam_setter(&AdamOptions::beta2, 1)},
        {"epsilon", adam_setter(&AdamOptions::epsilon, HUGE_VAL)},
        {"virtual-ranks", count_setter(&Options::virtual_ranks)},
        {"predict-only", bool_setter(&Options::predict_only)},
        {"timing", bool_setter(&Options::timing)},
        {"benchmark", count_setter(&Options::benchmark)},
        {"warmup", count_setter(&Options::warmup)},
        {"samples", count_setter(&Options::num_samples)},
        {"batch-size", read_batch_size},
        {"network", [](Options& o, const std::string& f, const std::string& v) { o.network = read_network(f, v); }},
        {"reduction", choice_setter(&Options::reduction, reduction_names)},
    };
    return table;
}

void require(const std::string& value, const std::string& flag, const std::string& why) {
    if (value.empty()) throw UserError("--" + flag + " is missing: " + why + "; --help lists the flags");
}

void check_training(const Options& options) {
    if (!options.seed) require(options.initial_weights, "initial-weights", "training starts from that file, or --seed");
    if (options.seed && (!options.initial_weights.empty() || options.semantics != Semantics::standard)) {
        throw UserError("--seed draws the first weights of --semantics standard; it takes no --initial-weights");
    }
    if (!options.model.empty()) throw UserError("--model goes with --predict-only; training reads --initial-weights");
    const bool standard = options.semantics == Semantics::standard;
    if (!standard && !options.batch_order.empty()) {
        throw UserError("--batch-order goes with --semantics standard; reference takes full batches");
    }
    if (!standard && options.virtual_ranks) {
        throw UserError("--virtual-ranks goes with --semantics standard; reference has none");
    }
    if (options.trace.empty() && options.prediction.empty() && options.model_output.empty() && !options.timing) {
        throw UserError("--trace is missing: nothing would be written; give --trace OUT.nc (or another output)");
    }
    if (!options.model_output.empty() && options.engine != EngineKind::torch) {
        throw UserError("--model-output goes with --engine torch: only libtorch writes such archives");
    }
}

void check_prediction(const Options& options) {
    require(options.model, "model", "--predict-only reads its weights from that file");
    require(options.prediction, "prediction", "--predict-only writes that file");
    if (options.engine != EngineKind::torch) {
        throw UserError("--predict-only goes with --engine torch: only libtorch reads such archives");
    }
    if (!options.trace.empty() || !options.model_output.empty() || !options.initial_weights.empty()) {
        throw UserError("--predict-only takes no --trace, --model-output or --initial-weights");
    }
}

/// Throws UserError for flags that the kind of run does not use.
void check_benchmark(const Options& options, const std::set<std::string>& seen) {
    const std::set<std::string> allowed = {"benchmark",         "warmup",        "samples", "batch-size",
                                           "network",           "reduction",     "engine",  "precision",
                                           "hidden-activation", "virtual-ranks", "beta1",   "beta2",
                                           "output-activation", "learning-rate", "epsilon"};
    for (const std::string& flag : seen) {
        const bool only_benchmark =
            flag == "warmup" || flag == "samples" || flag == "batch-size" || flag == "network" || flag == "reduction";
        if (!options.benchmark && only_benchmark) throw UserError("--" + flag + " goes with --benchmark");
        if (options.benchmark && !allowed.count(flag)) throw UserError("--benchmark takes no --" + flag);
    }
    if (options.virtual_ranks && options.reduction != Reduction::fixed) {
        throw UserError("--virtual-ranks goes with --reduction fixed; the others have one microbatch per rank");
    }
}

void check_power_of_two(const std::optional<std::int64_t>& virtual_ranks) {
    if (virtual_ranks && (*virtual_ranks & (*virtual_ranks - 1)) != 0) {
        refuse("virtual-ranks", std::to_string(*virtual_ranks), "a power of two");
    }
}

}  // namespace

Options read_options(int argc, const char* const* argv) {
    Options options;
    options.engine = torch_engine_is_built() ? EngineKind::torch : EngineKind::plain;
    std::set<std::string> seen;
    for (int i = 1; i < argc; ++i) {
        std::string flag = argv[i];
        if (flag == "--help" || flag == "-h") {
            options.help = true;
            return options;
        }
        if (flag.rfind("--", 0) != 0) throw UserError(flag + ": not a flag; --help lists the flags");
        const std::size_t equals = flag.find('=');
        std::optional<std::string> value;
        if (equals != std::string::npos) value = flag.substr(equals + 1);
        flag = flag.substr(2, equals == std::string::npos ? equals : equals - 2);
        const auto setter = setters().find(flag);
        if (setter == setters().end()) throw UserError("--" + flag + ": unknown flag; --help lists the flags");
        if (!seen.insert(flag).second) throw UserError("--" + flag + ": given twice; give it once");
        const bool value_follows = i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0;
        if (!value && value_follows) value = argv[++i];
        if (!value && flag == "predict-only") value = "true";
        if (!value || value->empty()) throw UserError("--" + flag + ": its value is missing; --help lists the flags");
        setter->second(options, flag, *value);
    }
    check_benchmark(options, seen);
    if (!options.benchmark) require(options.history, "history", "the samples are read from that CICE history file");
    if (options.engine == EngineKind::torch && !torch_engine_is_built()) {
        throw UserError("--engine torch: this program was built without libtorch; give --engine plain");
    }
    check_power_of_two(options.virtual_ranks);
    if (options.benchmark) return options;
    options.predict_only ? check_prediction(options) : check_training(options);
    return options;
}

const char* name_of(EngineKind engine) { return engine_names[static_cast<std::size_t>(engine)].c_str(); }
const char* name_of(Precision precision) { return precision_names[static_cast<std::size_t>(precision)].c_str(); }
const char* name_of(Semantics semantics) { return semantics_names[static_cast<std::size_t>(semantics)].c_str(); }
const char* name_of(Pole pole) { return pole_names[static_cast<std::size_t>(pole)].c_str(); }
const char* name_of(Reduction reduction) { return reduction_names[static_cast<std::size_t>(reduction)].c_str(); }

std::string help_text() {
    return R"(mpitrain_reference: trains the sea-ice network 7-H-1 over MPI, as the Python package mpitrain does

  mpiexec -n P mpitrain_reference --history F.nc --initial-weights W.nc --trace T.nc [flags]
  mpiexec -n P mpitrain_reference --predict-only --history F.nc --model model.pt --prediction P.nc [flags]
  mpiexec -n P mpitrain_reference --benchmark STEPS [flags]

Files read
  --history F.nc            CICE history file
  --initial-weights W.nc    fc1.weight (H,7), fc1.bias (H), fc2.weight (1,H), fc2.bias (1); deeper chains: fc3, ...
  --batch-order B.nc        standard: training_index (n_train), batch_order (step, virtual rank, microbatch); without it
                            every step takes all valid samples
  --model M.pt              with --predict-only: TorchScript archive; normalization.M.pt must be in the same folder
Files written, by rank 0
  --trace T.nc              all numbers for the comparison of two programs, in the order of computation
  --prediction P.nc         prediction and Jacobian for every selected sample
  --model-output M.pt       weights and moments as a libtorch archive, and normalization.M.pt in the same folder
Computation
  --engine torch|plain              torch: libtorch; plain: loops in this program (default: torch if it is built in)
  --precision float32|float64       (default: float32)
  --semantics reference|standard    (default: reference)
  --pole north|south                (default: north)
  --clean-data true|false           (default: true)
  --hidden-size H                   units of the first hidden layer; must agree with the weights
  --seed S                          standard: draws the initial weights, as Python does; replaces --initial-weights
  --hidden-activation none|sigmoid|relu|gelu|tanh|silu     (default: none)
  --output-activation none|sigmoid|relu|gelu|tanh|silu     (default: sigmoid)
  --epochs E                        (default: 60; with --batch-order its steps, which E must divide)
  --virtual-ranks V                 standard: a power of two; 8 reproduces older results (default: from the batch size)
  --learning-rate 0.001  --beta1 0.9  --beta2 0.999  --epsilon 1e-8     Adam
  --trace-steps 1,10,100,1000       steps, counted from 1, with gradients and weights in the trace
  --predict-only                    no training
  --timing true|false               one line of JSON with the median microseconds of a step (default: false)
  --help
Timing of training steps on synthetic samples; prints one line of JSON
  --benchmark STEPS                 steps to time; reads and writes no files
  --warmup STEPS                    steps before them (default: a tenth)
  --network 7-64-64-1               units of each level (default: 7-16-1)
  --samples N                       samples on all ranks (default: 16384)
  --batch-size B|full               global batch size (default: full)
  --reduction fixed|any|original    fixed: V microbatches added in the fixed tree; any: one microbatch per rank, one
                                    MPI_Allreduce;
                                    original: one microbatch per rank, one MPI_Allreduce per parameter, libtorch's Adam

Exit status: 0 success, 2 wrong input (with a message of one line on standard error), 1 an error in the program.
)";
}
