// A small variational problem: the state x that is nearest to a background and to observations of the network's outputs.
//
//   J(x) = 1/2 |(x - background) / sigma|^2 + 1/2 |(forward(x) - observation) / error|^2
//   dJ/dx = (x - background) / sigma^2 + K^T (forward(x) - observation) / error^2, with the adjoint K^T
#include <cmath>
#include <cstdio>

#include "emulator.hpp"

namespace {

using emulator::input_array;
using emulator::output_array;

struct Problem {
    input_array background{}, sigma{};
    output_array observation{};
    double error = 0.01;

    double cost(const input_array &x) const {
        const output_array y = emulator::forward(x);
        double sum = 0;
        for (std::size_t i = 0; i < x.size(); ++i) sum += std::pow((double(x[i]) - background[i]) / sigma[i], 2);
        for (std::size_t o = 0; o < y.size(); ++o) sum += std::pow((double(y[o]) - observation[o]) / error, 2);
        return sum / 2;
    }

    input_array gradient(const input_array &x) const {
        output_array misfit = emulator::forward(x);
        for (std::size_t o = 0; o < misfit.size(); ++o)
            misfit[o] = emulator::real((double(misfit[o]) - observation[o]) / (error * error));
        input_array result = emulator::adjoint(x, misfit);
        for (std::size_t i = 0; i < x.size(); ++i)
            result[i] += emulator::real((double(x[i]) - background[i]) / (double(sigma[i]) * sigma[i]));
        return result;
    }
};

/// Steepest descent in units of sigma, halving steps that do not lower the cost.
input_array minimise(const Problem &problem, int num_steps) {
    input_array x = problem.background;
    double step = 1;
    for (int count = 0; count < num_steps; ++count) {
        const input_array slope = problem.gradient(x);
        const double before = problem.cost(x);
        for (int tries = 0; tries < 40; ++tries, step /= 2) {
            input_array next = x;
            for (std::size_t i = 0; i < x.size(); ++i)
                next[i] -= emulator::real(step * slope[i] * problem.sigma[i] * problem.sigma[i]);
            if (problem.cost(next) >= before) continue;
            x = next;
            step *= 2;
            break;
        }
    }
    return x;
}

}  // namespace

int main() {
    Problem problem;
    input_array truth{};
    for (std::size_t i = 0; i < truth.size(); ++i) {
        const auto &input = emulator::inputs[i];
        problem.background[i] = input.mean;
        problem.sigma[i] = input.std;
        truth[i] = emulator::real(double(input.mean) + (i % 2 ? 0.5 : -0.5) * double(input.std));
    }
    problem.observation = emulator::forward(truth);

    // The gradient by the adjoint against central differences of the cost.
    double largest = 0, size = 0;
    const input_array slope = problem.gradient(problem.background);
    for (std::size_t i = 0; i < truth.size(); ++i) {
        input_array up = problem.background, down = problem.background;
        const double h = 1e-5 * problem.sigma[i];
        up[i] += emulator::real(h);
        down[i] -= emulator::real(h);
        const double difference = (problem.cost(up) - problem.cost(down)) / (double(up[i]) - double(down[i]));
        largest = std::fmax(largest, std::fabs(difference - slope[i]) * problem.sigma[i]);
        size = std::fmax(size, std::fabs(difference) * problem.sigma[i]);
    }
    const input_array found = minimise(problem, 400);
    const double first = problem.cost(problem.background), last = problem.cost(found);
    double left = 0;
    const input_array end = problem.gradient(found);
    for (std::size_t i = 0; i < end.size(); ++i) left = std::fmax(left, std::fabs(end[i]) * problem.sigma[i]);
    std::printf("gradient differs by %.1e; cost %.6g -> %.6g; gradient %.3g -> %.3g\n", largest / size, first, last, size, left);
    return largest / size < 1e-6 && last < 0.1 * first && left < 1e-3 * size ? 0 : 1;
}
