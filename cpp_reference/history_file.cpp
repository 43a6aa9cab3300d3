#include "history_file.hpp"

#include "errors.hpp"
#include "netcdf_file.hpp"

namespace {

std::string text_of(const std::vector<std::size_t>& shape) {
    std::string text = "(";
    for (std::size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
    return text + ")";
}

/// A grid of shape (nj, ni), or a field of shape (1, nj, ni).
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

Weights read_weights(const std::string& path) {
    const NetcdfFile file = NetcdfFile::open(path);
    const std::vector<std::size_t> first = file.shape("fc1.weight");
    if (first.size() != 2 || first[0] < 1 || first[1] != num_features) {
        throw UserError(path + ": variable fc1.weight has shape " + text_of(first) + "; allowed is (hidden size, 7)");
    }
    Weights weights{first[0], {}};
    for (const Parameter& parameter : parameters_of(weights.hidden_size)) {
        if (file.shape(parameter.name) != parameter.shape) {
            throw UserError(path + ": variable " + parameter.name + " has shape " +
                            text_of(file.shape(parameter.name)) + "; allowed is " + text_of(parameter.shape));
        }
        const std::vector<double> values = file.read_double(parameter.name);
        weights.values.insert(weights.values.end(), values.begin(), values.end());
    }
    return weights;
}
