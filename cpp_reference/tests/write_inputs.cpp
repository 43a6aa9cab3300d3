// write_inputs FOLDER: small NetCDF files, good and bad, for the tests of the program.
#include <netcdf.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <map>

#include "history_file.hpp"
#include "netcdf_file.hpp"

namespace {

constexpr std::size_t nj = 6, ni = 8, num_points = nj * ni;
using Fields = std::map<std::string, std::vector<double>>;

/// Every point is selected in the north; each field varies in its own way.
Fields good_fields() {
    Fields fields;
    fields["ULAT"].assign(num_points, 75);
    fields["ULON"].assign(num_points, 10);
    fields["umask"].assign(num_points, 1);
    for (std::size_t i = 0; i < num_points; ++i) {
        const auto t = static_cast<double>(i);
        fields["aice_h"].push_back(0.5 + 0.4 * std::sin(t));
        for (std::size_t f = 0; f < num_features; ++f) {
            fields[input_names[f]].push_back(std::cos(t * static_cast<double>(f + 1)) + static_cast<double>(f));
        }
    }
    return fields;
}

void write_history(const std::string& path, const Fields& fields, std::size_t num_times) {
    NetcdfFile file = NetcdfFile::create(path);
    for (const auto& [name, values] : fields) {
        if (name[0] == 'U' || name[0] == 'u') {
            file.define(name, NC_FLOAT, {{"nj", nj}, {"ni", ni}});
        } else {
            file.define(name, NC_FLOAT, {{"time", num_times}, {"nj", nj}, {"ni", ni}});
        }
    }
    file.end_definitions();
    for (const auto& [name, values] : fields) {
        std::vector<double> repeated = values;
        if (name[0] != 'U' && name[0] != 'u') {
            for (std::size_t t = 1; t < num_times; ++t) repeated.insert(repeated.end(), values.begin(), values.end());
        }
        file.write(name, repeated);
    }
    file.close();
}

void write_changed(const std::string& path, const std::function<void(Fields&)>& change) {
    Fields fields = good_fields();
    change(fields);
    write_history(path, fields, 1);
}

void write_weights(const std::string& path, std::size_t hidden_size, std::size_t bias_size) {
    NetcdfFile file = NetcdfFile::create(path);
    file.define("fc1.weight", NC_FLOAT, {{"hidden", hidden_size}, {"feature", num_features}});
    file.define("fc1.bias", NC_FLOAT, {{"bias", bias_size}});
    file.define("fc2.weight", NC_FLOAT, {{"output", 1}, {"hidden", hidden_size}});
    file.define("fc2.bias", NC_FLOAT, {{"output", 1}});
    file.end_definitions();
    const auto ramp = [](std::size_t n) {
        std::vector<double> values(n);
        for (std::size_t k = 0; k < n; ++k) values[k] = 0.5 * std::sin(static_cast<double>(k + 1));
        return values;
    };
    file.write("fc1.weight", ramp(hidden_size * num_features));
    file.write("fc1.bias", ramp(bias_size));
    file.write("fc2.weight", ramp(hidden_size));
    file.write("fc2.bias", ramp(1));
    file.close();
}

/// 8 virtual ranks; about one row in nine is padding. shift 1 gives each virtual rank its neighbour's samples.
void write_batch_order(const std::string& path, std::int64_t num_samples, std::int64_t shift) {
    constexpr std::int64_t num_steps = 40, v_count = 8, rows = 8;
    std::vector<std::int64_t> training_index, order;
    for (std::int64_t i = 0; i < num_samples; ++i) training_index.push_back(i);
    for (std::int64_t step = 0; step < num_steps; ++step) {
        for (std::int64_t v = 0; v < v_count; ++v) {
            const std::int64_t mine = (num_samples - v + v_count - 1) / v_count;
            for (std::int64_t r = 0; r < rows; ++r) {
                const std::int64_t number = step * rows + r;
                order.push_back((number + v) % 9 == 0 ? -1 : number * 7 % mine * v_count + (v + shift) % v_count);
            }
        }
    }
    NetcdfFile file = NetcdfFile::create(path);
    file.define("training_index", NC_INT64, {{"n_train", training_index.size()}});
    file.define("batch_order", NC_INT, {{"step", num_steps}, {"virtual_rank", v_count}, {"microbatch", rows}});
    file.end_definitions();
    file.write("training_index", training_index);
    file.write("batch_order", order);
    file.close();
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 2) throw std::runtime_error("usage: write_inputs FOLDER");
    const std::string folder = std::string(argv[1]) + "/";
    write_changed(folder + "good.nc", [](Fields&) {});
    write_changed(folder + "missing_variable.nc", [](Fields& fields) { fields.erase("sss_h"); });
    write_changed(folder + "constant.nc", [](Fields& fields) { fields["sst_h"].assign(num_points, 2); });
    write_changed(folder + "fill.nc", [](Fields& fields) { fields["hi_h"][5] = 1e30; });
    write_changed(folder + "not_a_number.nc", [](Fields& fields) { fields["hs_h"][7] = std::nan(""); });
    write_changed(folder + "no_samples.nc", [](Fields& fields) { fields["umask"].assign(num_points, 0); });
    write_changed(folder + "one_sample.nc", [](Fields& fields) {
        fields["umask"].assign(num_points, 0);
        fields["umask"][0] = 1;
    });
    write_history(folder + "two_times.nc", good_fields(), 2);
    write_weights(folder + "weights.nc", 4, 4);
    write_weights(folder + "wrong_weights.nc", 4, 3);
    write_batch_order(folder + "batch_order.nc", 40, 0);
    write_batch_order(folder + "large_batch_order.nc", 1400, 0);
    write_batch_order(folder + "foreign_batch_order.nc", 40, 1);
    return 0;
} catch (const std::exception& error) {
    std::cerr << "write_inputs: " << error.what() << "\n";
    return 1;
}
