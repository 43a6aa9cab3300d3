// One training step of a dense network, forward, backward and Adam, for sizes fixed when this file is compiled.
//
//   R rows of a tile      I, J inputs and outputs of a layer      n parameters      k slices      b rows a slice
//
// Activations are row-major and padded: [R][width(I)]. Every sum runs in an order that its own slice fixes: over inputs
// for an output, over rows for a weight. How many slices a call computes therefore changes no bit of any of them.
// Macros given by the compiler's command line: REAL, LAYER_SIZES, HIDDEN, OUTPUT, LOSS.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace {

using Real = REAL;
enum Activation { identity, sigmoid, tanh, relu, gelu };
enum Loss { mse, mae, huber };

constexpr int sizes[] = {LAYER_SIZES};
constexpr int num_layers = sizeof(sizes) / sizeof(sizes[0]) - 1;
constexpr Activation hidden_activation = HIDDEN;
constexpr Activation output_activation = OUTPUT;
constexpr Loss loss_kind = LOSS;

#ifdef __AVX512F__
constexpr int vector_bytes = 64, row_block = 8;
#else
constexpr int vector_bytes = 32, row_block = 4;
#endif
constexpr int lanes = vector_bytes / static_cast<int>(sizeof(Real));
typedef Real Vector __attribute__((vector_size(vector_bytes), aligned(sizeof(Real)), may_alias));

constexpr int tile_rows = 64;
constexpr int width(int features) { return (features + lanes - 1) / lanes * lanes; }
constexpr int widest() {
    int most = 0;
    for (const int size : sizes) most = width(size) > most ? width(size) : most;
    return most;
}
constexpr int num_parameters() {
    int total = 0;
    for (int l = 0; l < num_layers; ++l) total += sizes[l + 1] * (sizes[l] + 1);
    return total;
}
constexpr int extra_entries = 3;  // behind the gradient: loss sum, weight sum, stop flag

/// Numbers too small to be normal, such as the moments of a unit that is dead, count as 0 while this lives: arithmetic
/// with them takes a hundred times as long. Never around sums of several slices, which other code adds too.
struct FlushToZero {
#ifdef __SSE__
    const unsigned int before = _mm_getcsr();
    FlushToZero() { _mm_setcsr(before | 0x8040); }
    ~FlushToZero() { _mm_setcsr(before); }
#endif
};

Vector load(const Real* from) { return *reinterpret_cast<const Vector*>(from); }
void store(Real* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

/// c[m][n] = start[m][n] + sum over k of a(m, k) * b[k][n], for M x N outputs; N a multiple of the lanes.
/// a(m, k) is a[m * a_row + k * a_column]; rows of `start` lie `start_row` apart, and without one the sums start at 0.
template <int K>
void multiply(int M, int N, int num_k, const Real* a, std::ptrdiff_t a_row, std::ptrdiff_t a_column, const Real* b,
              std::ptrdiff_t b_row, const Real* start, std::ptrdiff_t start_row, Real* c, std::ptrdiff_t c_row) {
    const int depth = K > 0 ? K : num_k;
    const auto block = [&](auto rows_constant, auto vectors_constant, int m, int n) {
        constexpr int rows = decltype(rows_constant)::value, vectors = decltype(vectors_constant)::value;
        Vector sum[rows][vectors];
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v)
                sum[r][v] = start ? load(start + (m + r) * start_row + n + v * lanes) : Vector{};
        for (int k = 0; k < depth; ++k) {
            Vector row[vectors];
            for (int v = 0; v < vectors; ++v) row[v] = load(b + k * b_row + n + v * lanes);
            for (int r = 0; r < rows; ++r) {
                const Real factor = a[(m + r) * a_row + k * a_column];
                for (int v = 0; v < vectors; ++v) sum[r][v] += factor * row[v];
            }
        }
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v) store(c + (m + r) * c_row + n + v * lanes, sum[r][v]);
    };
    const auto columns = [&](auto rows_constant, int m) {
        int n = 0;
        for (; n + 2 * lanes <= N; n += 2 * lanes) block(rows_constant, std::integral_constant<int, 2>{}, m, n);
        for (; n < N; n += lanes) block(rows_constant, std::integral_constant<int, 1>{}, m, n);
    };
    int m = 0;
    for (; m + row_block <= M; m += row_block) columns(std::integral_constant<int, row_block>{}, m);
    for (; m + 2 <= M; m += 2) columns(std::integral_constant<int, 2>{}, m);
    for (; m < M; ++m) columns(std::integral_constant<int, 1>{}, m);
}

/// The sum of all lanes, half and half: four additions in a row where one after the other were fifteen.
template <int num_lanes>
Real sum_of_lanes(const Real* from) {
    if constexpr (num_lanes == 1) return *from;
    constexpr int half = num_lanes / 2;
    Real folded[half];
    for (int lane = 0; lane < half; ++lane) folded[lane] = from[lane] + from[lane + half];
    return sum_of_lanes<half>(folded);
}

template <Activation kind>
Real activate(Real z) {
    if constexpr (kind == sigmoid) return 1 / (1 + std::exp(-z));
    if constexpr (kind == tanh) return std::tanh(z);
    if constexpr (kind == relu) return z < 0 ? 0 : z;  // a NaN stays one
    if constexpr (kind == gelu) return z * Real(0.5) * (1 + std::erf(z * Real(0.70710678118654752440)));
    return z;
}

/// The derivative by z, from z and the activation y.
template <Activation kind>
Real slope(Real z, Real y) {
    if constexpr (kind == sigmoid) return y * (1 - y);
    if constexpr (kind == tanh) return 1 - y * y;
    if constexpr (kind == relu) return z > 0 ? 1 : 0;
    if constexpr (kind == gelu) {
        const Real density = std::exp(Real(-0.5) * z * z) * Real(0.39894228040143267794);
        return Real(0.5) * (1 + std::erf(z * Real(0.70710678118654752440))) + z * density;
    }
    return 1;
}

Real loss_of(Real error) {
    const Real size = std::fabs(error);
    if constexpr (loss_kind == mae) return size;
    if constexpr (loss_kind == huber) return size < 1 ? Real(0.5) * error * error : size - Real(0.5);
    return error * error;
}

Real loss_slope(Real error) {
    const Real sign = static_cast<Real>((error > 0) - (error < 0));
    if constexpr (loss_kind == mae) return sign;
    if constexpr (loss_kind == huber) return std::fabs(error) < 1 ? error : sign;
    return 2 * error;
}

/// Weights in the layouts that the products read, and the gradient in the layout that they write; zero padding stays
/// zero.
struct Layer {
    Real forward[widest()][widest()];   // [I][width(J)]
    Real backward[widest()][widest()];  // [J][width(I)]
    Real bias[widest()];
    Real weight_gradient[widest()][widest()];  // [J][width(I)]
    Real bias_gradient[widest()];
};

struct Workspace {
    Layer layers[num_layers];
    Real before[num_layers + 1][tile_rows][widest()];  // z of each layer
    Real after[num_layers + 1][tile_rows][widest()];   // its activation; [0] holds the inputs
    Real delta[2][tile_rows][widest()];
};

void spread_weights(Workspace& work, const Real* parameters) {
    for (int l = 0; l < num_layers; ++l) {
        const int I = sizes[l], J = sizes[l + 1];
        Layer& layer = work.layers[l];
        for (int j = 0; j < J; ++j) {
            std::memcpy(layer.backward[j], parameters + j * I, sizeof(Real) * static_cast<std::size_t>(I));
            for (int i = 0; i < I; ++i) layer.forward[i][j] = parameters[j * I + i];
        }
        parameters += I * J;
        std::memcpy(layer.bias, parameters, sizeof(Real) * static_cast<std::size_t>(J));
        parameters += J;
    }
}

void gather_gradients(const Workspace& work, Real* gradient) {
    for (int l = 0; l < num_layers; ++l) {
        const int I = sizes[l], J = sizes[l + 1];
        for (int j = 0; j < J; ++j, gradient += I)
            std::memcpy(gradient, work.layers[l].weight_gradient[j], sizeof(Real) * static_cast<std::size_t>(I));
        std::memcpy(gradient, work.layers[l].bias_gradient, sizeof(Real) * static_cast<std::size_t>(J));
        gradient += J;
    }
}

template <int l>
void forward_layer(Workspace& work, int R) {
    constexpr int I = sizes[l], J = sizes[l + 1], stride = widest();
    constexpr Activation kind = l == num_layers - 1 ? output_activation : hidden_activation;
    Real(*z)[stride] = work.before[l + 1];
    Real(*y)[stride] = work.after[l + 1];
    const Layer& layer = work.layers[l];
    if constexpr (J <= 2) {  // a vector along the outputs would be nearly empty: along the inputs instead
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < J; ++j) {
                Vector sum{};
                for (int i = 0; i < width(I); i += lanes)
                    sum += load(work.after[l][r] + i) * load(layer.backward[j] + i);
                z[r][j] = layer.bias[j] + sum_of_lanes<lanes>(reinterpret_cast<const Real*>(&sum));
            }
    } else {
        multiply<I>(R, width(J), I, work.after[l][0], stride, 1, layer.forward[0], stride, layer.bias, 0, z[0], stride);
    }
    for (int r = 0; r < R; ++r) {
        if constexpr (kind == identity) {
            std::memcpy(y[r], z[r], sizeof(Real) * J);
        } else {
            for (int j = 0; j < J; ++j) y[r][j] = activate<kind>(z[r][j]);
        }
    }
    if constexpr (l + 1 < num_layers) forward_layer<l + 1>(work, R);
}

/// Sets the gradients of layer l and those below by the R rows of a slice's first tile, and adds to them by later ones.
template <int l>
void backward_layer(Workspace& work, int R, bool is_first) {
    constexpr int I = sizes[l], J = sizes[l + 1], stride = widest();
    Layer& layer = work.layers[l];
    Real(*delta)[stride] = work.delta[l % 2];
    Real* gradient = layer.weight_gradient[0];
    multiply<0>(J, width(I), R, delta[0], 1, stride, work.after[l][0], stride, is_first ? nullptr : gradient, stride,
                gradient, stride);
    if (is_first) std::memset(layer.bias_gradient, 0, sizeof(layer.bias_gradient));
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < J; ++j) layer.bias_gradient[j] += delta[r][j];
    if constexpr (l > 0) {
        Real(*below)[stride] = work.delta[(l + 1) % 2];
        multiply<J>(R, width(I), J, delta[0], stride, 1, layer.backward[0], stride, nullptr, 0, below[0], stride);
        if constexpr (hidden_activation != identity) {
            for (int r = 0; r < R; ++r)
                for (int i = 0; i < I; ++i)
                    below[r][i] *= slope<hidden_activation>(work.before[l][r][i], work.after[l][r][i]);
        }
        backward_layer<l - 1>(work, R, is_first);
    }
}

/// Rows of one virtual rank in physical units: inputs [rows][F], targets [rows][O], weights [rows], 0 for padding.
struct Rows {
    const Real* inputs;
    const Real* targets;
    const Real* weights;
};

/// What normalises inputs and targets: input mean [F], input std [F], target mean [O], target std [O].
struct Statistics {
    const Real* numbers;
    const Real* input_mean() const { return numbers; }
    const Real* input_std() const { return numbers + sizes[0]; }
    const Real* target_mean() const { return numbers + 2 * sizes[0]; }
    const Real* target_std() const { return numbers + 2 * sizes[0] + sizes[num_layers]; }
};

/// Sets the inputs of a tile; what lies behind a row's F inputs stays zero.
void gather_inputs(Workspace& work, int R, const Rows& rows, const std::int64_t* order, const Statistics& statistics) {
    constexpr int F = sizes[0];
    const Real *mean = statistics.input_mean(), *std = statistics.input_std();
    for (int r = 0; r < R; ++r) {
        const Real* x = rows.inputs + order[r] * F;
        for (int f = 0; f < F; ++f) work.after[0][r][f] = (x[f] - mean[f]) / std[f];
    }
}

/// Adds the losses of a tile to loss_sum, and sets the output layer's delta.
void start_backward(Workspace& work, int R, const Rows& rows, const std::int64_t* order, const Statistics& statistics,
                    Real& loss_sum, Real& weight_sum) {
    constexpr int O = sizes[num_layers];
    const Real *mean = statistics.target_mean(), *std = statistics.target_std();
    for (int r = 0; r < R; ++r) {
        const Real weight = rows.weights[order[r]];
        weight_sum += weight * O;
        for (int o = 0; o < O; ++o) {
            const Real y = work.after[num_layers][r][o],
                       error = y - (rows.targets[order[r] * O + o] - mean[o]) / std[o];
            loss_sum += weight * loss_of(error);
            work.delta[(num_layers - 1) % 2][r][o] =
                weight * loss_slope(error) * slope<output_activation>(work.before[num_layers][r][o], y);
        }
    }
}

/// What a training step needs, set up once; the fields are those of `KernelStep` in dense_kernel.py, in their order.
struct Step {
    Workspace* work;
    Real* parameters;        // [n]
    const Real* statistics;  // see Statistics
    const Rows* sources;     // [k]
    Real* partials;          // [k][n + 3]: gradient of the summed weighted loss, loss sum, weight sum, stop flag
    double* epoch_sums;      // [k][2]: losses and weights of the epoch so far
    double* loss_and_stop;   // [2]: the batch's mean loss, the number of ranks that ask to stop
    Real* first_moment;      // [n]: Adam's m, or the velocity of gradient descent
    Real* second_moment;     // [n]: Adam's v
    float* step_count;
    volatile std::int64_t* steps_done;  // of the call that is running, for a thread that watches
    std::int64_t order_stride, num_slices, slice_rows;
    std::int64_t combination;  // of the k partials: 0 none, 1 into row 0 in the pairwise tree
    std::int64_t optimizer;    // 0 Adam, 1 AdamW, 2 gradient descent
    double clip_norm, beta1, beta2, epsilon, weight_decay, momentum;
};

/// The partial of one slice, whose b rows are `order` [b].
void write_partial(Workspace& work, const Step& step, const Rows& rows, const std::int64_t* order, Real stop_flag,
                   Real* partial) {
    const Statistics statistics{step.statistics};
    Real loss_sum = 0, weight_sum = 0;
    for (std::int64_t first = 0; first < step.slice_rows; first += tile_rows) {
        const int R = static_cast<int>(step.slice_rows - first < tile_rows ? step.slice_rows - first : tile_rows);
        gather_inputs(work, R, rows, order + first, statistics);
        forward_layer<0>(work, R);
        start_backward(work, R, rows, order + first, statistics, loss_sum, weight_sum);
        backward_layer<num_layers - 1>(work, R, first == 0);
    }
    gather_gradients(work, partial);
    partial[num_parameters()] = loss_sum;
    partial[num_parameters() + 1] = weight_sum;
    partial[num_parameters() + 2] = stop_flag;
}

constexpr int partial_length = num_parameters() + extra_entries;

void add_partial(Real* partials, std::int64_t to, std::int64_t from) {
    Real* target = partials + to * partial_length;
    const Real* source = partials + from * partial_length;
    for (int i = 0; i < partial_length; ++i) target[i] += source[i];
}

/// Adds partial number s, the last one of `num_held` that lie behind one another, to those before it as far as its
/// subtree is complete; returns how many are left: one, after k partials, if k is a power of two.
std::int64_t add_in_tree_so_far(const Step& step, std::int64_t s, std::int64_t num_held) {
    for (; s % 2 == 1; s /= 2, --num_held) add_partial(step.partials, num_held - 2, num_held - 1);
    return num_held;
}

/// Where the ranks of one node add up; the fields are those of `KernelSharedSum` in dense_kernel.py, in their order.
struct SharedSum {
    Meeting* meeting;
    std::int64_t num_ranks, num_rows;      // P, and R rows of all ranks, at most largest_tree_rows
    std::int64_t first_row, num_own_rows;  // which of the rows are this rank's
    std::int64_t num_spins;                // see meet()
};

constexpr int largest_tree_rows = 64;

/// rows [R][n + 3], which others read too, into total [n + 3], in the tree ((0,1),(2,3)),...; where a level has an odd
/// number of rows, the last one waits for the next level.
void add_in_tree(const Real* rows, std::int64_t num_rows, Real* total) {
    constexpr int block = 128;
    alignas(64) Real level[largest_tree_rows][block];
    for (int first = 0; first < partial_length; first += block) {
        const int count = partial_length - first < block ? partial_length - first : block;
        for (std::int64_t r = 0; r < num_rows; ++r)
            std::memcpy(level[r], rows + r * partial_length + first, sizeof(Real) * static_cast<std::size_t>(count));
        for (std::int64_t distance = 1; distance < num_rows; distance *= 2)
            for (std::int64_t r = 0; r + distance < num_rows; r += 2 * distance)
                for (int i = 0; i < count; ++i) level[r][i] += level[r + distance][i];
        std::memcpy(total + first, level[0], sizeof(Real) * static_cast<std::size_t>(count));
    }
}

/// Replaces row 0 of this rank's partials by the sum over all ranks. Collective over the ranks of `shared`.
void add_among_ranks(const Step& step, const SharedSum& shared) {
    const std::uint32_t buffer = shared.meeting->round.load(std::memory_order_acquire) % 2;
    Real* rows = reinterpret_cast<Real*>(shared.meeting->rows) + buffer * shared.num_rows * partial_length;
    std::memcpy(rows + shared.first_row * partial_length, step.partials,
                sizeof(Real) * static_cast<std::size_t>(shared.num_own_rows * partial_length));
    meet(*shared.meeting, static_cast<std::uint32_t>(shared.num_ranks), shared.num_spins);
    add_in_tree(rows, shared.num_rows, step.partials);
}

/// total [n + 3], the sum over all slices of all ranks, becomes the batch's mean gradient, shortened to clip_norm if
/// that is above 0.
void average_gradient(const Step& step, Real* total) {
    constexpr int n = num_parameters();
    const Real weight_sum = total[n + 1];
    step.loss_and_stop[0] = static_cast<double>(total[n]) / static_cast<double>(weight_sum);
    step.loss_and_stop[1] = static_cast<double>(total[n + 2]);
    for (int i = 0; i < n; ++i) total[i] /= weight_sum;
    if (step.clip_norm <= 0) return;
    double squares = 0;
    for (int i = 0; i < n; ++i) squares += static_cast<double>(total[i]) * static_cast<double>(total[i]);
    const double shortened = step.clip_norm / (std::sqrt(squares) + 1e-6);
    if (shortened >= 1) return;
    for (int i = 0; i < n; ++i) total[i] *= static_cast<Real>(shortened);
}

/// Adam (Kingma and Ba, 2015); the weight decay is L2, or decoupled as in AdamW (Loshchilov and Hutter, 2019).
void adam_step(const Step& step, const Real* gradient, double learning_rate) {
    const double t = static_cast<double>(*step.step_count += 1);
    const bool is_decoupled = step.optimizer == 1;
    const Real l2 = static_cast<Real>(is_decoupled ? 0 : step.weight_decay);
    const Real shrink = static_cast<Real>(is_decoupled ? 1 - learning_rate * step.weight_decay : 1);
    const Real keep = static_cast<Real>(step.beta2), one_minus_beta1 = static_cast<Real>(1 - step.beta1);
    const Real one_minus_beta2 = static_cast<Real>(1 - step.beta2), eps = static_cast<Real>(step.epsilon);
    const Real correction = static_cast<Real>(std::sqrt(1 - std::pow(step.beta2, t)));
    const Real step_size = static_cast<Real>(learning_rate / (1 - std::pow(step.beta1, t)));
    Real* __restrict m = step.first_moment;
    Real* __restrict v = step.second_moment;
    Real* __restrict parameters = step.parameters;
    for (int i = 0; i < num_parameters(); ++i) {
        const Real g = gradient[i] + l2 * parameters[i];
        m[i] += one_minus_beta1 * (g - m[i]);
        v[i] = keep * v[i] + one_minus_beta2 * g * g;
        parameters[i] = shrink * parameters[i] - step_size * m[i] / (std::sqrt(v[i]) / correction + eps);
    }
}

/// Stochastic gradient descent with momentum as torch has it: no dampening, L2 weight decay.
void descent_step(const Step& step, const Real* gradient, double learning_rate) {
    const Real rate = static_cast<Real>(learning_rate), keep = static_cast<Real>(step.momentum);
    const Real l2 = static_cast<Real>(step.weight_decay);
    Real* __restrict velocity = step.first_moment;
    Real* __restrict parameters = step.parameters;
    for (int i = 0; i < num_parameters(); ++i) {
        velocity[i] = keep * velocity[i] + gradient[i] + l2 * parameters[i];
        parameters[i] -= rate * velocity[i];
    }
}

}  // namespace

extern "C" {

std::int64_t workspace_bytes() { return sizeof(Workspace); }
std::int64_t parameter_count() { return num_parameters(); }

/// Computes the k partials of a batch and combines them; order [k][b] says which rows, `order_stride` numbers apart.
void sum_slices(const Step* step, const std::int64_t* order, double stop_flag) {
    spread_weights(*step->work, step->parameters);
    std::int64_t num_held = 0;
    for (std::int64_t s = 0; s < step->num_slices; ++s) {
        Real* partial = step->partials + num_held * partial_length;
        {
            const FlushToZero here;
            write_partial(*step->work, *step, step->sources[s], order + s * step->order_stride,
                          static_cast<Real>(stop_flag), partial);
        }
        for (int i = 0; i < 2; ++i) step->epoch_sums[2 * s + i] += static_cast<double>(partial[num_parameters() + i]);
        ++num_held;
        if (step->combination == 1) num_held = add_in_tree_so_far(*step, s, num_held);
    }
    if (step->combination == 1)  // k was no power of two
        for (; num_held > 1; --num_held) add_partial(step->partials, num_held - 2, num_held - 1);
}

/// Updates the parameters by total [n + 3], the sum over all ranks.
void apply_sum(const Step* step, Real* total, double learning_rate) {
    const FlushToZero here;
    average_gradient(*step, total);
    if (step->optimizer == 2) {
        descent_step(*step, total, learning_rate);
    } else {
        adam_step(*step, total, learning_rate);
    }
}

std::int64_t most_shared_rows() { return largest_tree_rows; }
std::int64_t shared_bytes(std::int64_t num_rows) {
    return static_cast<std::int64_t>(sizeof(Meeting)) +
           2 * num_rows * partial_length * static_cast<std::int64_t>(sizeof(Real));
}

/// Takes up to `num_steps` steps, whose orders lie `order_step` numbers apart, and sets their mean losses. Returns how
/// many: the last is the first whose loss is not finite, or after which a rank asks to stop.
/// `shared` is null for one rank that has all slices; else collective over its ranks.
std::int64_t take_steps(const Step* step, const SharedSum* shared, const std::int64_t* order, std::int64_t order_step,
                        std::int64_t num_steps, double stop_flag, double learning_rate, double* losses) {
    for (std::int64_t taken = 0; taken < num_steps;) {
        sum_slices(step, order + taken * order_step, stop_flag);
        if (shared) add_among_ranks(*step, *shared);
        apply_sum(step, step->partials, learning_rate);
        losses[taken] = step->loss_and_stop[0];
        *step->steps_done = ++taken;
        if (!std::isfinite(step->loss_and_stop[0]) || step->loss_and_stop[1] > 0) return taken;
    }
    return num_steps;
}

std::int64_t meeting_bytes() { return sizeof(Meeting); }
std::uint32_t current_round(const Meeting* meeting) { return meeting->round.load(); }
std::uint32_t arrive_at(Meeting* meeting, std::uint32_t num_ranks) { return arrive(*meeting, num_ranks); }
void wait_at(Meeting* meeting, std::uint32_t round, std::int64_t num_spins) {
    wait_for_end(*meeting, round, num_spins);
}
void open_round(Meeting* meeting) { open_next_round(*meeting); }
}
