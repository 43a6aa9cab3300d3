#include "model_file.hpp"

#include <filesystem>

#include "engine.hpp"
#include "errors.hpp"
#include "netcdf_file.hpp"

namespace {

std::string normalization_path(const std::string& path) {
    const std::filesystem::path model(path);
    return (model.parent_path() / ("normalization." + model.filename().string())).string();
}

/// Converts libtorch's errors, which have many lines, to a UserError of one line with the name of the file.
template <typename Work>
void with_file_name(const std::string& path, const std::string& what, Work&& work) {
    try {
        work();
    } catch (const c10::Error& error) {
        const std::string text = error.what_without_backtrace();
        throw UserError(path + ": " + what + ": " + text.substr(0, text.find('\n')));
    }
}

torch::Tensor read_tensor(torch::serialize::InputArchive& archive, const std::string& name, const std::string& path) {
    torch::Tensor tensor;
    if (!archive.try_read(name, tensor)) throw UserError(path + ": tensor " + name + " is missing");
    return tensor.detach().to(torch::kFloat64).contiguous();
}

std::vector<double> values_of(const torch::Tensor& tensor) {
    return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

void check_shape(const torch::Tensor& tensor, const std::vector<std::size_t>& shape, const std::string& name,
                 const std::string& path) {
    const std::vector<std::int64_t> allowed(shape.begin(), shape.end());
    if (tensor.sizes() != torch::IntArrayRef(allowed)) {
        throw UserError(path + ": tensor " + name + " has " + std::to_string(tensor.numel()) +
                        " values, and its shape does not fit the previous layers; the last layer has one output");
    }
}

/// Returns the sizes of the levels from the archive's fc1.weight (H1,F), fc2.weight (H2,H1), ...
Sizes sizes_in(torch::serialize::InputArchive& archive, const std::string& path) {
    Sizes sizes = {num_features};
    torch::serialize::InputArchive layer;
    for (std::size_t l = 1; archive.try_read("fc" + std::to_string(l), layer); ++l) {
        const std::string name = "fc" + std::to_string(l) + ".weight";
        const torch::Tensor weight = read_tensor(layer, "weight", path);
        if (weight.dim() != 2) throw UserError(path + ": tensor " + name + " is not a matrix");
        sizes.push_back(static_cast<std::size_t>(weight.size(0)));
        layer = torch::serialize::InputArchive();
    }
    if (sizes.size() < 3) throw UserError(path + ": layer fc" + std::to_string(sizes.size()) + " is missing");
    sizes.back() = 1;
    return sizes;
}

Weights weights_in(torch::serialize::InputArchive& archive, const std::string& path) {
    Weights weights{sizes_in(archive, path), {}};
    for (const Parameter& parameter : parameters_of(weights.sizes)) {
        const std::size_t dot = parameter.name.find('.');
        torch::serialize::InputArchive owner;
        archive.read(parameter.name.substr(0, dot), owner);
        const torch::Tensor tensor = read_tensor(owner, parameter.name.substr(dot + 1), path);
        check_shape(tensor, parameter.shape, parameter.name, path);
        const std::vector<double> values = values_of(tensor);
        weights.values.insert(weights.values.end(), values.begin(), values.end());
    }
    return weights;
}

}  // namespace

NetworkModule::NetworkModule(const Sizes& sizes) {
    const auto f = static_cast<std::int64_t>(num_features);
    for (std::size_t l = 1; l < sizes.size(); ++l) {
        const torch::nn::Linear layer(static_cast<std::int64_t>(sizes[l - 1]), static_cast<std::int64_t>(sizes[l]));
        layers.push_back(register_module("fc" + std::to_string(l), layer));
    }
    input_mean = register_buffer("input_mean", torch::zeros(f));
    input_std = register_buffer("input_std", torch::ones(f));
}

void save_model_files(const std::shared_ptr<NetworkModule>& network, const std::string& path) {
    check_writable(path);
    with_file_name(path, "cannot be written", [&] { torch::save(network, path); });
    const std::string moments_path = normalization_path(path);
    check_writable(moments_path);
    const std::vector<torch::Tensor> moments = {network->input_mean, network->input_std};
    with_file_name(moments_path, "cannot be written", [&] { torch::save(moments, moments_path); });
}

Model read_model(const std::string& path) {
    Model model;
    with_file_name(path, "cannot be read as a libtorch archive", [&] {
        torch::serialize::InputArchive archive;
        archive.load_from(path);
        model.weights = weights_in(archive, path);
    });
    const std::string moments_path = normalization_path(path);
    with_file_name(moments_path, "cannot be read as a libtorch archive", [&] {
        torch::serialize::InputArchive archive;
        archive.load_from(moments_path);
        const torch::Tensor mean = read_tensor(archive, "0", moments_path);
        const torch::Tensor std = read_tensor(archive, "1", moments_path);
        check_shape(mean, {num_features}, "0", moments_path);
        check_shape(std, {num_features}, "1", moments_path);
        model.normalization = {values_of(mean), values_of(std)};
    });
    return model;
}
