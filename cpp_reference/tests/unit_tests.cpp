// Answers in closed form, in rank and number of ranks. Runs on any number of ranks; exits 1 on all when one check
// fails.
#include <cmath>
#include <cstring>
#include <iostream>
#include <numeric>

#include "batch_order.hpp"
#include "engine.hpp"
#include "moments.hpp"
#include "mpi_session.hpp"
#include "partition.hpp"
#include "selection.hpp"
#include "virtual_ranks.hpp"

namespace {

int failures = 0;

void check(bool holds, const std::string& what, int rank) {
    if (holds) return;
    ++failures;
    std::cerr << "rank " << rank << ": FAILED: " << what << "\n";
}

std::vector<std::int64_t> numbers(std::int64_t count) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

void test_rank_range(const MpiSession& mpi) {
    const int p = mpi.world_size(), r = mpi.rank();
    for (const std::int64_t count : {0, 1, 3, 8, 1000}) {
        const Range mine = rank_range(count, p, r);
        check(mine.start == (r == 0 ? 0 : rank_range(count, p, r - 1).stop), "runs are contiguous", r);
        check(r < p - 1 || mine.stop == count, "the last run ends at the end", r);
        check(mine.size() == count / p || mine.size() == count / p + 1, "runs differ by one at most", r);
    }
    check(rank_range(8, 6, 0).size() == 1 && rank_range(8, 6, 2).size() == 2, "8 on 6 ranks", r);
}

void test_partition(const MpiSession& mpi) {
    const int p = mpi.world_size(), r = mpi.rank();
    const std::vector<std::int64_t> mine = round_robin(numbers(10 * p + 1), p, r);
    check(mine.size() == (r == 0 ? 11U : 10U), "round robin: 10 each, rank 0 one more", r);
    for (std::size_t k = 0; k < mine.size(); ++k) {
        check(mine[k] == r + static_cast<std::int64_t>(k) * p, "round robin: r, r + P, r + 2P", r);
    }
    check(round_robin(numbers(10 * p), p, r, 4).size() == 4, "round robin stops at its limit", r);
    check(points_of_virtual_rank({5, 6, 7, 8, 9}, 2, 1) == std::vector<std::int64_t>{6, 8}, "i mod V == v", r);
    check(points_of_virtual_rank({5}, 4, 3).empty(), "a virtual rank may own nothing", r);
}

void test_microbatches() {
    // The same table as in tests/comm/test_comm_virtual_ranks.py.
    const std::vector<std::pair<std::int64_t, std::int64_t>> known = {{1, 1},   {15, 1},    {16, 2},     {64, 8},
                                                                      {100, 8}, {1000, 64}, {1024, 128}, {4096, 128}};
    for (const auto& [batch, count] : known) check(microbatches_of(batch) == count, "microbatches of a batch", 0);
}

void test_tree_order() {
    // ((1e8 + 1) + (-1e8 + 1)) in float32: each 1 is lost beside 1e8; from left to right the last 1 would survive.
    std::vector<float> partials = {1e8F, 1, -1e8F, 1};
    add_tree(partials.data(), 4, 1);
    check(partials[0] == 0, "the tree adds neighbours first", 0);
}

void test_virtual_ranks(const MpiSession& mpi) {
    constexpr std::size_t width = 5;
    for (const std::int64_t count : {1, 2, 4, 8, 16}) {
        const auto value = [](std::int64_t v, std::size_t k) {
            return k == 0 ? static_cast<float>(v + 1)
                          : static_cast<float>(std::exp(std::sin(double(7 * v) + double(k)) * 9));
        };
        VirtualRanks<float> ranks(mpi, count, width);
        std::vector<float> all(static_cast<std::size_t>(count) * width);
        for (std::int64_t v = 0; v < count; ++v) {
            const bool is_mine = v >= ranks.owned().start && v < ranks.owned().stop;
            for (std::size_t k = 0; k < width; ++k) {
                all[static_cast<std::size_t>(v) * width + k] = value(v, k);
                if (is_mine) ranks.partial(v)[k] = value(v, k);
            }
        }
        add_tree(all.data(), static_cast<std::size_t>(count), width);
        const float* total = ranks.all_reduce();
        check(total[0] == static_cast<float>(count * (count + 1) / 2), "1 + ... + V = V (V + 1) / 2", mpi.rank());
        check(std::memcmp(total, all.data(), width * sizeof(float)) == 0, "same bits as one rank's tree", mpi.rank());
    }
}

/// x[i][f] = i + f for i in start, start + stride, ...: mean and m2 are known.
std::vector<double> ramp(std::int64_t start, std::int64_t stop, std::int64_t stride) {
    std::vector<double> x;
    for (std::int64_t i = start; i < stop; i += stride) {
        for (std::size_t f = 0; f < num_features; ++f) x.push_back(static_cast<double>(i) + static_cast<double>(f));
    }
    return x;
}

void test_moments(const MpiSession& mpi) {
    constexpr std::int64_t count = 8, n = 100;
    const Range owned = rank_range(count, mpi.world_size(), mpi.rank());
    std::vector<Moments> parts;
    for (std::int64_t v = owned.start; v < owned.stop; ++v) parts.push_back(moments_of(ramp(v, n, count)));
    const Moments all = all_reduce_moments(mpi, parts, count);
    check(all.count == n, "every sample is counted once", mpi.rank());
    for (std::size_t f = 0; f < num_features; ++f) {
        check(std::abs(all.mean[f] - ((n - 1) / 2.0 + static_cast<double>(f))) < 1e-12, "mean (n - 1) / 2 + f",
              mpi.rank());
        check(std::abs(all.m2[f] - n * (n * n - 1) / 12.0) < 1e-8, "m2 = n (n^2 - 1) / 12", mpi.rank());
    }
    const Moments nothing;
    check(merge(nothing, all).mean == all.mean && merge(all, nothing).m2 == all.m2, "nothing merged", mpi.rank());
    std::vector<std::size_t> constant;
    const Normalization flat = normalization_of(moments_of(std::vector<double>(30 * num_features, 0.1)), constant);
    check(flat.std[0] == 1 && std::abs(flat.mean[0] - 0.1) < 1e-15 && constant.size() == num_features,
          "no variance: std 1", mpi.rank());
}

void test_reference_normalization(const MpiSession& mpi) {
    // Each rank has the samples -1 and 3: mean 1, std 2, whatever the number of ranks.
    const std::vector<float> sums(num_features, 2);
    const Normalization got =
        reference_normalization<float>(mpi, {sums, std::vector<float>(num_features, 10)}, 2, plain_one_pass_moments);
    check(got.mean[6] == 1 && got.std[6] == 2, "reference: mean 1, std 2", mpi.rank());
    bool refused = false;
    try {  // variance 1 - 1
        reference_normalization<float>(mpi, {sums, sums}, 2, plain_one_pass_moments);
    } catch (const AgreedError& error) {
        refused = std::string(error.what()).find("Tair_h") == 0;
    }
    check(refused, "reference: zero variance is an error that names the feature", mpi.rank());
}

/// The square root of some CPUs' vector libraries is 1 ulp off for many values: nearly all is what both can promise.
void test_one_pass_moments_of_both_engines(const MpiSession& mpi) {
    if (!torch_engine_is_built()) return;
    ColumnSums<float> sums;
    for (std::size_t f = 0; f < num_features; ++f) {
        sums.x.push_back(1.5F * static_cast<float>(f));
        sums.x_squared.push_back(100 + 7.3F * static_cast<float>(f));
    }
    const OnePassMoments<float> plain = plain_one_pass_moments(sums, 12.0F),
                                torch = torch_one_pass_moments(sums, 12.0F);
    bool close = torch.std.size() == num_features;
    for (std::size_t f = 0; close && f < num_features; ++f) {
        close = plain.mean[f] == torch.mean[f] && std::abs(plain.std[f] - torch.std[f]) <= 2.5e-7F * plain.std[f];
    }
    check(close, "reference: both engines' statistics agree to 2 ulp", mpi.rank());
}

History history_of(std::vector<float> latitude, std::vector<float> mask, std::vector<float> aice) {
    History history{latitude, latitude, mask, aice, {}};
    for (std::vector<float>& input : history.inputs) input.assign(latitude.size(), 1);
    return history;
}

void test_selection() {
    const float nan = std::nanf("");
    History history = history_of({40, 41, 41, 41, 41, 41, 70, -41, -61, 60, 61}, {1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0},
                                 {.5F, .5F, .5F, 0, 1, nan, 1.01F, .5F, 1e30F, .5F, 1e30F});
    using Points = std::vector<std::int64_t>;
    check(select_points(history, Pole::north, true) == Points{1, 4, 9}, "north, clean", 0);
    check(select_points(history, Pole::south, true) == Points{7}, "south, clean", 0);
    check(select_points(history, Pole::north, false) == Points{6, 10}, "north, not clean", 0);
    check(select_points(history, Pole::south, false) == Points{8}, "south, not clean", 0);
    history.inputs[3][1] = nan;
    history.inputs[0][4] = -1e29F;
    check(drop_invalid(history, {0, 1, 4, 8, 9}) == Points{0, 9}, "NaN and fill values are dropped", 0);
}

void test_full_batch_order(const MpiSession& mpi) {
    const BatchOrder order = full_batch_order(numbers(9), 4, 1, 0);
    check(order.microbatch_size == 3, "9 samples on 4 virtual ranks: 3 rows", mpi.rank());
    const std::vector<std::int64_t> expected = {0, 1, 2, 0, 1, -1, 0, 1, -1, 0, 1, -1};
    check(order.slots == expected, "short microbatches are filled with -1", mpi.rank());
}

void test_together(const MpiSession& mpi) {
    const int last = mpi.world_size() - 1;
    std::string text;
    int code = exit_done;
    try {
        mpi.together([&] {
            if (mpi.rank() == last) throw UserError("rank " + std::to_string(last) + "\nsecond line");
        });
    } catch (const AgreedError& error) {
        text = error.what();
        code = error.exit_code();
    }
    check(text == "rank " + std::to_string(last) && code == exit_user_error, "one rank's error is everyone's",
          mpi.rank());
    check(mpi.together([] { return 7; }) == 7, "a value comes back", mpi.rank());
    const std::vector<std::int64_t> all =
        mpi.gather(std::vector<std::int64_t>(static_cast<std::size_t>(mpi.rank()), mpi.rank()));
    std::vector<std::int64_t> expected;
    for (int r = 0; r <= last; ++r) expected.insert(expected.end(), static_cast<std::size_t>(r), r);
    check(all == (mpi.is_root() ? expected : std::vector<std::int64_t>{}), "gather keeps rank order", mpi.rank());
}

/// 70 rows (more than a tile) of a small network, in float64.
struct SmallCase {
    Weights weights;
    std::vector<double> x, y, weight;
    Options options;
    explicit SmallCase(const Sizes& sizes = {num_features, 3, 1}) : weights{sizes, {}} {
        for (std::size_t k = 0; k < num_parameters(weights.sizes); ++k)
            weights.values.push_back(std::sin(double(k + 1)));
        for (std::size_t i = 0; i < 70 * num_features; ++i) x.push_back(std::cos(double(3 * i)));
        for (std::size_t i = 0; i < 70; ++i) y.push_back(0.5 + 0.5 * std::sin(double(5 * i)));
        for (std::size_t i = 0; i < 70; ++i) weight.push_back(i % 5 == 0 ? 0 : 1);
    }
    Microbatch<double> microbatch() const { return {70, x.data(), y.data(), weight.data()}; }
};

const std::vector<Activation> all_activations = {Activation::none, Activation::sigmoid, Activation::relu,
                                                 Activation::gelu, Activation::tanh,    Activation::silu};
/// Widths below, at and above those of a vector; relu's kinks are far from the weights of all of them.
const std::vector<Sizes> all_sizes = {{num_features, 3, 1}, {num_features, 5, 20, 1}, {num_features, 16, 9, 4, 1}};

void test_plain_gradient(const Sizes& sizes) {
    for (const Activation activation : all_activations) {
        SmallCase small(sizes);
        small.options.hidden_activation = activation;
        std::vector<double> gradient(num_parameters(small.weights.sizes)), unused(num_parameters(small.weights.sizes));
        make_plain_engine<double>(small.weights, small.options)->summed_loss(small.microbatch(), gradient.data());
        for (std::size_t k = 0; k < gradient.size(); ++k) {
            constexpr double step = 1e-6;
            Weights above = small.weights, below = small.weights;
            above.values[k] += step;
            below.values[k] -= step;
            const double up =
                make_plain_engine<double>(above, small.options)->summed_loss(small.microbatch(), unused.data());
            const double down =
                make_plain_engine<double>(below, small.options)->summed_loss(small.microbatch(), unused.data());
            check(std::abs((up - down) / (2 * step) - gradient[k]) < 1e-7, "gradient is the loss's slope", 0);
        }
    }
}

void test_plain_jacobian(const Sizes& sizes) {
    SmallCase small(sizes);
    small.options.hidden_activation = Activation::gelu;
    const auto engine = make_plain_engine<double>(small.weights, small.options);
    engine->set_normalization({std::vector<double>(num_features, 0.3), std::vector<double>(num_features, 1.7)});
    const Prediction prediction = engine->predict(small.x);
    for (std::size_t i = 0; i < small.x.size(); i += 3) {
        std::vector<double> above = small.x, below = small.x;
        above[i] += 1e-6;
        below[i] -= 1e-6;
        const std::size_t row = i / num_features;
        const double slope = (engine->forward(above)[row] - engine->forward(below)[row]) / 2e-6;
        check(std::abs(slope - prediction.jacobian[i]) < 1e-8, "Jacobian is the output's slope", 0);
    }
}

void test_plain_adam(const Sizes& sizes) {
    // The first step of Adam is lr g / (|g| + eps), whatever the betas.
    for (const Semantics semantics : {Semantics::reference, Semantics::standard}) {
        SmallCase small(sizes);
        small.options.semantics = semantics;
        const auto engine = make_plain_engine<double>(small.weights, small.options);
        std::vector<double> gradient(num_parameters(small.weights.sizes), -2.0);
        engine->adam_step(gradient.data());
        check(std::abs(engine->weights()[4] - small.weights.values[4] - 1e-3) < 1e-10, "Adam's first step", 0);
    }
}

void check_close(double loss_a, double loss_b, const std::vector<double>& a, const std::vector<double>& b) {
    check(std::abs(loss_a - loss_b) < 1e-13 * (1 + std::abs(loss_b)), "losses agree", 0);
    for (std::size_t k = 0; k < a.size(); ++k) {
        check(std::abs(a[k] - b[k]) < 1e-13 * (1 + std::abs(b[k])), "gradients agree", 0);
    }
}

void test_column_sums() {
    if (!torch_engine_is_built()) return;
    for (const std::size_t rows : {std::size_t{3}, std::size_t{1513}, std::size_t{20000}}) {
        std::vector<float> x;
        for (std::size_t i = 0; i < rows * num_features; ++i) x.push_back(33 + std::sin(static_cast<float>(i)));
        const ColumnSums<float> plain = plain_column_sums(x), torch = torch_column_sums(x);
        check(plain.x == torch.x && plain.x_squared == torch.x_squared, "column sums: torch's bits", 0);
    }
}

void test_engines_agree(const Sizes& sizes, Activation output_activation) {
    if (!torch_engine_is_built()) return;
    SmallCase small(sizes);
    small.options.output_activation = output_activation;
    for (const Activation activation : all_activations) {
        small.options.hidden_activation = activation;
        const auto plain = make_plain_engine<double>(small.weights, small.options);
        const auto torch = make_torch_engine<double>(small.weights, small.options);
        std::vector<double> a(num_parameters(small.weights.sizes)), b(num_parameters(small.weights.sizes));
        const Microbatch<double> all = {70, small.x.data(), small.y.data(), nullptr};
        check_close(plain->mean_loss(all, a.data()), torch->mean_loss(all, b.data()), a, b);
        check_close(plain->summed_loss(small.microbatch(), a.data()), torch->summed_loss(small.microbatch(), b.data()),
                    a, b);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const MpiSession mpi(argc, argv);
    test_rank_range(mpi);
    test_partition(mpi);
    test_microbatches();
    test_virtual_ranks(mpi);
    test_moments(mpi);
    test_reference_normalization(mpi);
    test_one_pass_moments_of_both_engines(mpi);
    test_full_batch_order(mpi);
    test_together(mpi);
    if (mpi.is_root()) {
        test_tree_order();
        test_selection();
        test_column_sums();
        for (const Sizes& sizes : all_sizes) {
            test_plain_gradient(sizes);
            test_plain_jacobian(sizes);
            test_plain_adam(sizes);
            test_engines_agree(sizes, Activation::sigmoid);
            test_engines_agree(sizes, Activation::none);
        }
    }
    MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_SUM, mpi.comm());
    if (mpi.is_root()) std::cout << (failures == 0 ? "all checks hold" : "checks failed") << "\n";
    return failures == 0 ? 0 : 1;
}
