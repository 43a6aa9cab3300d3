#include "history_file.hpp"

#include "errors.hpp"
#include "netcdf_file.hpp"

namespace {

std::string text_of(const std::vector<std::size_t>& shape) {
    std::string text = "(";
    for (std::size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
    return text + ")";
}

/// Reads a variable of shape (nj, ni) or (1, nj, ni).
std::vector<float> read_field(const NetcdfFile& file, const std::string& name, const std::vector<std::size_t>& grid) {
    std::vector<std::size_t> shape = file.shape(name);
    if (shape.size() == 3 && shape[0] == 1) shape.erase(shape.begin());
    if (shape != grid) {
        throw UserError(file.path() + ": variable " + name + " has shape " + text_of(file.shape(name)) +
                        "; allowed is the grid " + text_of(grid) + " or one time level of it");
    }
    return file.read_float(name);
}

}  // namespace

History read_history(const std::string& path) {
    const NetcdfFile file = NetcdfFile::open(path);
    const std::vector<std::size_t> grid = file.shape("ULAT");
    if (grid.size() != 2)
        throw UserError(path + ": variable ULAT has shape " + text_of(grid) + "; allowed is (nj, ni)");
    History history;
    history.latitude = read_field(file, "ULAT", grid);
    history.longitude = read_field(file, "ULON", grid);
    history.mask = read_field(file, "umask", grid);
    history.aice = read_field(file, "aice_h", grid);
    for (std::size_t f = 0; f < num_features; ++f) history.inputs[f] = read_field(file, input_names[f], grid);
    return history;
}

namespace {

/// Returns the sizes of the levels from the file's fc1.weight (H1,F), fc2.weight (H2,H1), ...; the last layer has one
/// output.
Sizes read_sizes(const NetcdfFile& file) {
    const auto name = [](std::size_t l) { return "fc" + std::to_string(l) + ".weight"; };
    Sizes sizes = {num_features};
    for (std::size_t l = 1; l <= 2 || file.has(name(l)); ++l) {
        const std::vector<std::size_t> shape = file.shape(name(l));
        const bool is_last = l > 1 && !file.has(name(l + 1));
        if (shape.size() != 2 || shape[0] < 1 || (is_last && shape[0] != 1) || shape[1] != sizes.back()) {
            throw UserError(file.path() + ": variable " + name(l) + " has shape " + text_of(shape) + "; allowed is (" +
                            (is_last ? "1" : "hidden size") + ", " + std::to_string(sizes.back()) + ")");
        }
        sizes.push_back(shape[0]);
    }
    return sizes;
}

}  // namespace

Weights read_weights(const std::string& path) {
    const NetcdfFile file = NetcdfFile::open(path);
    Weights weights{read_sizes(file), {}};
    for (const Parameter& parameter : parameters_of(weights.sizes)) {
        if (file.shape(parameter.name) != parameter.shape) {
            throw UserError(path + ": variable " + parameter.name + " has shape " +
                            text_of(file.shape(parameter.name)) + "; allowed is " + text_of(parameter.shape));
        }
        const std::vector<double> values = file.read_double(parameter.name);
        weights.values.insert(weights.values.end(), values.begin(), values.end());
    }
    return weights;
}
