// Trains a network by the kernels alone, on made-up samples, and prints a hash of its weights, losses and moments:
// what must be the same however and for whatever CPU this is compiled.
#include <cinttypes>
#include <cstdio>
#include <vector>

#ifdef FIELD_SIZE
#include "field_network.cpp"
#else
#include "dense_network.cpp"
#endif

namespace {

// Numbers of a sample's inputs, targets and weights; fields are of many points, so fewer of them.
#ifdef FIELD_SIZE
constexpr std::int64_t microbatch_rows = has_norm ? 1 : 2, num_steps = 20;
constexpr int F = num_inputs, O = num_outputs, input_numbers = F * H * W, target_numbers = O * H * W;
constexpr int weight_numbers = target_numbers;
#else
constexpr std::int64_t microbatch_rows = 9, num_steps = 60;
constexpr int F = sizes[0], O = sizes[num_layers], input_numbers = F, target_numbers = O, weight_numbers = 1;
#endif
constexpr std::int64_t num_microbatches = 8, num_rows = num_microbatches * microbatch_rows;

std::uint64_t random_state = 88172645463325252u;
/// A number in [-1, 1) of 20 bits.
Real random_number() {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return static_cast<Real>(static_cast<std::int64_t>(random_state >> 44) - 524288) / 524288;
}

std::vector<Real> random_numbers(std::int64_t count) {
    std::vector<Real> numbers(static_cast<std::size_t>(count));
    for (Real& number : numbers) number = random_number();
    return numbers;
}

template <typename Number>
std::uint64_t hashed(std::uint64_t hash, const std::vector<Number>& numbers) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(numbers.data());
    for (std::size_t i = 0; i < numbers.size() * sizeof(Number); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

}  // namespace

int main() {
    std::vector<Real> parameters = random_numbers(num_parameters()), inputs = random_numbers(num_rows * input_numbers);
    std::vector<Real> targets = random_numbers(num_rows * target_numbers), weights(num_rows * weight_numbers, 1), statistics(2 * F + 3 * O + 1, 1);
    for (Real& parameter : parameters) parameter /= 4;
    parameters[1] = inputs[2] = static_cast<Real>(1e-39);  // no number in float32 that has all its digits
    for (int f = 0; f < F; ++f) statistics[f] = random_number(), statistics[F + f] = Real(1.5) + random_number();
    for (int o = 0; o < O; ++o) statistics[2 * F + o] = random_number(), statistics[2 * F + O + o] = Real(0.75);
    std::vector<Real> partials(num_microbatches * partial_length), m(num_parameters()), v(num_parameters());
    std::vector<double> epoch_sums(2 * num_microbatches), loss_and_stop(2), losses(num_steps), validation(2);
    std::vector<std::int64_t> order(num_rows);
    std::vector<SampleAddresses> addresses(num_microbatches, {inputs.data(), targets.data(), weights.data()});
    for (std::int64_t row = 0; row < num_rows; ++row) order[row] = num_rows - 1 - row;
    std::vector<unsigned char> memory(sizeof(Workspace) + 64);
    const auto start = (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64;
    float step_count = 0;
    volatile std::int64_t steps_done = 0;
    Draws draws{1234567, 0, 0};
    std::vector<Real> running(static_cast<std::size_t>(running_before(num_layers)) + 1);
    for (int l = 0; l < num_layers; ++l)
        for (int c = 0; c < norm_channels(l); ++c)
            running[static_cast<std::size_t>(running_before(l) + norm_channels(l) + c)] = 1;
    const Step step{reinterpret_cast<Workspace*>(start),
                    parameters.data(),
                    statistics.data(),
                    addresses.data(),
                    partials.data(),
                    epoch_sums.data(),
                    loss_and_stop.data(),
                    m.data(),
                    v.data(),
                    &step_count,
                    &steps_done,
                    nullptr,
                    &draws,
                    running.data(),
                    &num_microbatches,
                    microbatch_rows,
                    1,
                    microbatch_rows,
                    1,
                    0.5,
                    0.9,
                    0.999,
                    1e-8,
                    0.01,
                    0};
    // The same batch in every step: the stride of the orders is 0.
    const std::int64_t taken = take_steps(&step, nullptr, order.data(), 0, num_steps, 0, 0.003, losses.data());
    add_losses(&step, addresses.data(), num_rows, validation.data());
    std::uint64_t hash = 14695981039346656037u;
    hash = hashed(hashed(hashed(hash, parameters), m), v);
    hash = hashed(hashed(hashed(hash, losses), epoch_sums), validation);
    if (has_batch_norm) hash = hashed(hash, running);
    std::printf("%016" PRIx64 " loss %.9g to %.9g in %d steps\n", hash, losses[0], losses[num_steps - 1],
                static_cast<int>(taken));
}
