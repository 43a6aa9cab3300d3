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

void Trace::add_parameters(const std::string& prefix, const std::vector<double>& flat, const Sizes& sizes) {
    const auto level = [&sizes](std::size_t l) -> std::pair<std::string, std::size_t> {
        if (l == 0) return {"feature", sizes[l]};
        if (l + 1 == sizes.size()) return {"output", sizes[l]};
        return {l == 1 ? "hidden" : "hidden" + std::to_string(l), sizes[l]};
    };
    const std::vector<Parameter> parameters = parameters_of(sizes);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
        const std::size_t l = p / 2 + 1;  // two parameters per layer: weight, bias
        const Dimensions dimensions = p % 2 == 0 ? Dimensions{level(l), level(l - 1)} : Dimensions{level(l)};
        const auto start = flat.begin() + static_cast<std::ptrdiff_t>(parameters[p].start);
        add(prefix + "." + parameters[p].name, dimensions,
            std::vector<double>(start, start + static_cast<std::ptrdiff_t>(parameters[p].size)));
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
