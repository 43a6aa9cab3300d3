#pragma once
#include <torch/torch.h>

#include <string>
#include <vector>

#include "network.hpp"

/// The network as a libtorch module: parameters fc1.weight, ... and buffers input_mean, input_std.
struct NetworkModule : torch::nn::Module {
    explicit NetworkModule(const Sizes& sizes);
    std::vector<torch::nn::Linear> layers;  // fc1, fc2, ...
    torch::Tensor input_mean;               // (F)
    torch::Tensor input_std;                // (F)
};

/// Writes the module by torch::save, and the moments to normalization.<name> in the same folder, which the original
/// program reads instead of the buffers. Throws UserError.
void save_model_files(const std::shared_ptr<NetworkModule>& network, const std::string& path);
