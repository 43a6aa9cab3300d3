#include "trace.hpp"

#include <netcdf.h>

#include <filesystem>

#include "errors.hpp"
#include "netcdf_file.hpp"

void Trace::add(const std::string& name, Dimensions dimensions, std::vector<double> values) {
    entries_.push_back({name, std::move(dimensions), false, std::move(values), {}});
}

void Trace::add(const std::string& name, Dimensions dimensions, std::vector<std::int64_t> values) {
    entries_.push_back({name, std::move(dimensions), true, {}, std::move(values)});
}

void Trace::add_parameters(const std::string& prefix, const std::vector<double>& flat, std::size_t hidden_size) {
    for (const Parameter& parameter : parameters_of(hidden_size)) {
        Dimensions dimensions;
        if (parameter.name == "fc1.weight") dimensions = {{"hidden", hidden_size}, {"feature", num_features}};
        if (parameter.name == "fc1.bias") dimensions = {{"hidden", hidden_size}};
        if (parameter.name == "fc2.weight") dimensions = {{"output", 1}, {"hidden", hidden_size}};
        if (parameter.name == "fc2.bias") dimensions = {{"output", 1}};
        const auto start = flat.begin() + static_cast<std::ptrdiff_t>(parameter.start);
        add(prefix + "." + parameter.name, dimensions,
            std::vector<double>(start, start + static_cast<std::ptrdiff_t>(parameter.size)));
    }
}

void Trace::write(const std::string& path, Precision precision) const {
    const std::string unfinished = path + ".partial";
    NetcdfFile file = NetcdfFile::create(unfinished);
    const int real_type = precision == Precision::float32 ? NC_FLOAT : NC_DOUBLE;
    for (const auto& [name, text] : texts_) file.set_attribute(name, text);
    for (const auto& [name, number] : numbers_) file.set_attribute(name, number);
    for (const Entry& entry : entries_)
        file.define(entry.name, entry.is_integer ? NC_INT64 : real_type, entry.dimensions);
    file.end_definitions();
    for (const Entry& entry : entries_) {
        entry.is_integer ? file.write(entry.name, entry.integers) : file.write(entry.name, entry.reals);
    }
    file.close();
    std::error_code failure;
    std::filesystem::rename(unfinished, path, failure);
    if (failure) throw UserError(path + ": cannot be written: " + failure.message());
}
