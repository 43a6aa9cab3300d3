// How fast an exported network of 7 inputs and 1 output is beside torch::jit, on one thread: speed MODEL.pt
//
// Every round times every way once, so that whatever else the machine does meets them all. Prints one line a way:
// what, who, the median time in us, and the median over the rounds of torch::jit's time divided by this way's.
#include <ATen/Parallel.h>
#include <time.h>
#include <torch/script.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "speed_calls.hpp"

namespace {

constexpr int kSamples = 4608, kInputs = 7, kRounds = 31;

struct Way {
    std::string what, who;
    int repetitions;
    std::function<void()> call;
    std::vector<double> times_us;
};

double now_us() {  // of this thread's own work: other programs are not counted
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e6 * double(time.tv_sec) + 1e-3 * double(time.tv_nsec);
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

// Outputs [kSamples] and derivatives [kSamples][kInputs] of one way.
struct Answers {
    std::vector<float> y = std::vector<float>(kSamples), jacobian = std::vector<float>(kSamples * kInputs);
};

bool near(const std::vector<float> &ours, const torch::Tensor &theirs) {
    const auto found = torch::from_blob(const_cast<float *>(ours.data()), {long(ours.size())});
    return torch::allclose(found, theirs.detach().reshape(-1), 1e-4, 1e-4);
}

bool same(const std::vector<float> &a, const std::vector<float> &b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

int main(int, char **arguments) {
    at::set_num_threads(1);
    auto model = torch::jit::load(arguments[1]);
    model.eval();
    const torch::Tensor batch = torch::randn({kSamples, kInputs}), one = batch.slice(0, 0, 1).clone();
    const float *x = batch.data_ptr<float>();
    torch::Tensor y, jacobian;
    auto forward = [&](const torch::Tensor &inputs) {
        torch::NoGradGuard no_gradients;
        y = model.forward({inputs}).toTensor();
    };
    auto derive = [&](const torch::Tensor &inputs) { jacobian = model.get_method("jac")({inputs}).toTensor(); };

    std::vector<Way> ways = {{"one sample", "torch::jit", 50, [&] { forward(one); }, {}},
                             {"its Jacobian", "torch::jit", 20, [&] { derive(one); }, {}},
                             {"4608 samples", "torch::jit", 1, [&] { forward(batch); }, {}},
                             {"4608 Jacobians", "torch::jit", 1, [&] { derive(batch); }, {}}};
    std::vector<Answers> answers(3);
    const Calls languages[] = {c_calls, cpp_calls, fortran_calls};
    for (int k = 0; k < 3; ++k) {
        const Calls &f = languages[k];
        float *our_y = answers[k].y.data(), *our_jacobian = answers[k].jacobian.data();
        ways.push_back({"one sample", f.language, 500, [=] { f.forward(x, our_y); }, {}});
        ways.push_back({"its Jacobian", f.language, 500, [=] { f.jacobian(x, our_y, our_jacobian); }, {}});
        ways.push_back({"4608 samples", f.language, 1, [=] { f.forward_batch(kSamples, x, our_y); }, {}});
        ways.push_back(
            {"4608 Jacobians", f.language, 1, [=] { f.jacobian_batch(kSamples, x, our_y, our_jacobian); }, {}});
    }
    for (int round = -2; round < kRounds; ++round)  // the first two warm torch::jit up
        for (Way &way : ways) {
            const double begin = now_us();
            for (int k = 0; k < way.repetitions; ++k) way.call();
            if (round >= 0) way.times_us.push_back((now_us() - begin) / way.repetitions);
        }

    for (const Way &way : ways) {
        const auto theirs = std::find_if(ways.begin(), ways.end(), [&](const Way &w) { return w.what == way.what; });
        std::vector<double> ratios;
        for (int r = 0; r < kRounds; ++r) ratios.push_back(theirs->times_us[r] / way.times_us[r]);
        std::printf("%s,%s,%.2f,%.2f\n", way.what.c_str(), way.who.c_str(), median(way.times_us), median(ratios));
    }
    // All of them have computed the same network.
    forward(batch);
    derive(batch);
    for (const Answers &ours : answers)
        if (!near(ours.y, y) || !near(ours.jacobian, jacobian) || !same(ours.y, answers[0].y) ||
            !same(ours.jacobian, answers[0].jacobian))
            return 1;
    return 0;
}
