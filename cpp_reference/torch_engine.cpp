// The libtorch engine: the same operations, in the same order, as the original program (reference) and as Python's
// torch (standard). Results must agree bit for bit, so no operation may be replaced by a mathematically equal one.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "engine.hpp"
#include "errors.hpp"
#include "model_file.hpp"

namespace {

template <typename Real>
constexpr torch::ScalarType dtype_of = std::is_same_v<Real, float> ? torch::kFloat32 : torch::kFloat64;

// from_blob requires a pointer to non-const; the memory is never written here.
template <typename Real>
torch::Tensor matrix(const Real* values, std::size_t rows) {
    const auto f = static_cast<std::int64_t>(num_features);
    return torch::from_blob(const_cast<Real*>(values), {static_cast<std::int64_t>(rows), f}, dtype_of<Real>);
}

template <typename Real>
torch::Tensor vector(const Real* values, std::size_t rows) {
    return torch::from_blob(const_cast<Real*>(values), {static_cast<std::int64_t>(rows)}, dtype_of<Real>);
}

template <typename Real>
std::vector<Real> values_of(const torch::Tensor& tensor) {
    const torch::Tensor dense = tensor.detach().contiguous();
    return {dense.data_ptr<Real>(), dense.data_ptr<Real>() + dense.numel()};
}

template <typename Real>
class TorchEngine final : public Engine<Real> {
  public:
    TorchEngine(const Weights& weights, const Options& options)
        : network_(std::make_shared<NetworkModule>(weights.sizes)),
          layout_(parameters_of(weights.sizes)),
          hidden_activation_(options.hidden_activation),
          output_activation_(options.output_activation),
          adam_(options.adam),
          is_reference_(options.semantics == Semantics::reference) {
        at::set_num_threads(1);  // the bits of sums depend on the number of threads
        network_->to(dtype_of<Real>);
        for (const torch::nn::Linear& layer : network_->layers) {
            parameters_.push_back(layer->weight);
            parameters_.push_back(layer->bias);
        }
        gradient_ = torch::zeros({static_cast<std::int64_t>(weights.values.size())}, dtype_of<Real>);
        const torch::NoGradGuard no_grad;
        for (std::size_t p = 0; p < layout_.size(); ++p) {
            const torch::Tensor values = torch::tensor(weights.values, torch::kFloat64);
            parameters_[p].copy_(part_of(values, p));
            parameters_[p].mutable_grad() = part_of(gradient_, p);
            first_moment_.push_back(torch::zeros_like(parameters_[p]));
            second_moment_.push_back(torch::zeros_like(parameters_[p]));
        }
        const auto betas = std::make_tuple(adam_.beta1, adam_.beta2);
        libtorch_adam_ = std::make_unique<torch::optim::Adam>(
            parameters_, torch::optim::AdamOptions(adam_.learning_rate).betas(betas).eps(adam_.epsilon));
    }

    void set_normalization(const Normalization& normalization) override {
        network_->input_mean.copy_(torch::tensor(normalization.mean, torch::kFloat64));
        network_->input_std.copy_(torch::tensor(normalization.std, torch::kFloat64));
    }

    std::vector<double> weights() const override {
        std::vector<double> all;
        for (const torch::Tensor& parameter : parameters_) {
            const torch::Tensor values = parameter.detach().to(torch::kFloat64);
            all.insert(all.end(), values.data_ptr<double>(), values.data_ptr<double>() + values.numel());
        }
        return all;
    }

    Real mean_loss(const Microbatch<Real>& microbatch, Real* gradient) override {
        const torch::Tensor output = run(matrix(microbatch.x, microbatch.rows)).view(-1);
        const torch::Tensor loss = torch::mse_loss(output, vector(microbatch.y, microbatch.rows));
        return differentiate(loss, gradient);
    }

    Real summed_loss(const Microbatch<Real>& microbatch, Real* gradient) override {
        const torch::Tensor output = run(matrix(microbatch.x, microbatch.rows)).view(-1);
        const torch::Tensor losses =
            torch::mse_loss(output, vector(microbatch.y, microbatch.rows), at::Reduction::None);
        return differentiate((losses * vector(microbatch.weight, microbatch.rows)).sum(), gradient);
    }

    void adam_step(const Real* gradient) override {
        std::copy_n(gradient, gradient_.numel(), gradient_.data_ptr<Real>());
        if (is_reference_) {
            libtorch_adam_->step();
        } else {
            python_adam_step();
        }
    }

    std::vector<Real> forward(const std::vector<Real>& x) override {
        const torch::NoGradGuard no_grad;
        return values_of<Real>(run(matrix(x.data(), x.size() / num_features)));
    }

    Prediction predict(const std::vector<Real>& x) override {
        const torch::Tensor samples = matrix(x.data(), x.size() / num_features).clone().set_requires_grad(true);
        const torch::Tensor output = run(samples);
        const torch::Tensor jacobian = torch::autograd::grad({output}, {samples}, {torch::ones_like(output)})[0];
        const std::vector<Real> y = values_of<Real>(output), dydx = values_of<Real>(jacobian);
        return {{y.begin(), y.end()}, {dydx.begin(), dydx.end()}};
    }

    void save_model(const std::string& path) override { save_model_files(network_, path); }

  private:
    /// Returns a view of parameter p's part of a flat vector (K), in the parameter's shape.
    torch::Tensor part_of(const torch::Tensor& flat, std::size_t p) const {
        return flat.narrow(0, static_cast<std::int64_t>(layout_[p].start), static_cast<std::int64_t>(layout_[p].size))
            .view(parameters_[p].sizes());
    }

    /// x (B,F) -> (B,1)
    torch::Tensor run(const torch::Tensor& x) {
        torch::Tensor level = (x - network_->input_mean) / network_->input_std;  // (B,F)
        for (std::size_t l = 0; l + 1 < network_->layers.size(); ++l) {
            level = activate(network_->layers[l](level), hidden_activation_);  // (B,H)
        }
        return activate(network_->layers.back()(level), output_activation_);
    }

    static torch::Tensor activate(const torch::Tensor& z, Activation activation) {
        switch (activation) {
            case Activation::sigmoid:
                return torch::sigmoid(z);
            case Activation::relu:
                return torch::relu(z);
            case Activation::gelu:
                return torch::gelu(z);
            case Activation::tanh:
                return torch::tanh(z);
            case Activation::silu:
                return torch::silu(z);
            case Activation::none:
                break;
        }
        return z;
    }

    Real differentiate(const torch::Tensor& loss, Real* gradient) {
        const std::vector<torch::Tensor> parts = torch::autograd::grad({loss}, parameters_);
        for (std::size_t p = 0; p < layout_.size(); ++p) {
            const torch::Tensor part = parts[p].contiguous();
            std::copy_n(part.data_ptr<Real>(), layout_[p].size, gradient + layout_[p].start);
        }
        return loss.item<Real>();
    }

    /// Adam as in torch/optim/adam.py, _single_tensor_adam: lerp for the first moment, instead of libtorch's mul and
    /// add.
    void python_adam_step() {
        const torch::NoGradGuard no_grad;
        ++step_;
        const auto t = static_cast<double>(step_);
        const double bias_correction1 = 1 - std::pow(adam_.beta1, t);
        const double bias_correction2_sqrt = std::sqrt(1 - std::pow(adam_.beta2, t));
        const double step_size = adam_.learning_rate / bias_correction1;
        for (std::size_t p = 0; p < layout_.size(); ++p) {
            const torch::Tensor gradient = parameters_[p].grad();
            torch::Tensor& m = first_moment_[p];
            torch::Tensor& v = second_moment_[p];
            m.lerp_(gradient, 1 - adam_.beta1);
            v.mul_(adam_.beta2).addcmul_(gradient, gradient, 1 - adam_.beta2);
            const torch::Tensor denominator = (v.sqrt() / bias_correction2_sqrt).add_(adam_.epsilon);
            parameters_[p].addcdiv_(m, denominator, -step_size);
        }
    }

    std::shared_ptr<NetworkModule> network_;
    std::vector<Parameter> layout_;
    Activation hidden_activation_, output_activation_;
    AdamOptions adam_;
    bool is_reference_;
    std::vector<torch::Tensor> parameters_;
    torch::Tensor gradient_;  // (K); the parameters' .grad are views of it
    std::vector<torch::Tensor> first_moment_, second_moment_;
    std::unique_ptr<torch::optim::Adam> libtorch_adam_;
    std::int64_t step_ = 0;
};

}  // namespace

bool torch_engine_is_built() { return true; }

std::string torch_build() { return std::string(TORCH_VERSION) + " (" + at::get_cpu_capability() + ")"; }

template <typename Real>
std::unique_ptr<Engine<Real>> make_torch_engine(const Weights& weights, const Options& options) {
    return std::make_unique<TorchEngine<Real>>(weights, options);
}

template <typename Real>
ColumnSums<Real> torch_column_sums(const std::vector<Real>& x) {
    at::set_num_threads(1);
    const torch::Tensor samples = matrix(x.data(), x.size() / num_features);
    return {values_of<Real>(torch::sum(samples, 0)), values_of<Real>(torch::sum(torch::pow(samples, 2), 0))};
}

template <typename Real>
OnePassMoments<Real> torch_one_pass_moments(const ColumnSums<Real>& sums, Real num_samples) {
    const auto total = static_cast<double>(num_samples);
    const torch::Tensor mean = vector(sums.x.data(), num_features) / total;  // (F)
    const torch::Tensor mean_of_squares = vector(sums.x_squared.data(), num_features) / total;
    return {values_of<Real>(mean), values_of<Real>(torch::sqrt(mean_of_squares - torch::pow(mean, 2)))};
}

template OnePassMoments<float> torch_one_pass_moments(const ColumnSums<float>&, float);
template OnePassMoments<double> torch_one_pass_moments(const ColumnSums<double>&, double);
template ColumnSums<float> torch_column_sums(const std::vector<float>&);
template ColumnSums<double> torch_column_sums(const std::vector<double>&);
template std::unique_ptr<Engine<float>> make_torch_engine(const Weights&, const Options&);
template std::unique_ptr<Engine<double>> make_torch_engine(const Weights&, const Options&);
