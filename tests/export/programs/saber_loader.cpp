// Plays the calls that SABER's TorchBalance blocks make: attributes first, then jac_physical on packed columns.
//
// saber_loader surface|vertical MODEL.pt N F        reads inputs.bin (N, F), mask.bin (N,) float32, and for vertical
//                                                   pairs.bin (2, p) int64; prints the attributes; writes jacobian.bin
#include <torch/script.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

template <typename Value> std::vector<Value> read_values(const std::string &path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) {
        throw std::runtime_error("cannot read " + path);
    }
    std::vector<Value> values(static_cast<std::size_t>(file.tellg()) / sizeof(Value));
    file.seekg(0);
    file.read(reinterpret_cast<char *>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(Value)));
    return values;
}

void print_names(const torch::jit::Module &module, const char *attribute) {
    std::cout << attribute;
    for (const auto &name : module.attr(attribute).toListRef()) {
        std::cout << ' ' << name.toStringRef();
    }
    std::cout << '\n';
}

void print_levels(const torch::jit::Module &module, const char *attribute) {
    std::cout << attribute;
    for (const std::int64_t level : module.attr(attribute).toIntVector()) {
        std::cout << ' ' << level;
    }
    std::cout << '\n';
}

} // namespace

int main(int, char **arguments) {
    const bool is_vertical = std::string(arguments[1]) == "vertical";
    torch::jit::Module module = torch::jit::load(arguments[2]);
    module.eval();
    torch::NoGradGuard no_gradients;
    const std::int64_t nodes = std::stol(arguments[3]), columns = std::stol(arguments[4]);
    auto inputs = read_values<float>("inputs.bin");
    auto mask = read_values<float>("mask.bin");
    std::vector<torch::jit::IValue> call{torch::from_blob(inputs.data(), {nodes, columns}),
                                         torch::from_blob(mask.data(), {nodes, 1})};
    print_names(module, "input_names");
    print_names(module, "output_names");
    std::vector<std::int64_t> pairs;
    if (is_vertical) {
        pairs = read_values<std::int64_t>("pairs.bin");
        const auto number = static_cast<std::int64_t>(pairs.size() / 2);
        call.emplace_back(torch::from_blob(pairs.data(), {number}, torch::kInt64));
        call.emplace_back(torch::from_blob(pairs.data() + number, {number}, torch::kInt64));
    } else {
        print_levels(module, "input_levels");
        print_levels(module, "output_levels");
    }
    const torch::Tensor jacobian = module.get_method("jac_physical")(call).toTensor().contiguous();
    std::cout << "jacobian " << jacobian.sizes() << '\n';
    std::ofstream("jacobian.bin", std::ios::binary)
        .write(reinterpret_cast<const char *>(jacobian.data_ptr<float>()),
               static_cast<std::streamsize>(jacobian.numel() * sizeof(float)));
    return 0;
}
