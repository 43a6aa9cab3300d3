#include "netcdf_file.hpp"

#include <netcdf.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "errors.hpp"

NetcdfFile NetcdfFile::open(const std::string& path) {
    int id = -1;
    const int status = nc_open(path.c_str(), NC_NOWRITE, &id);
    if (status != NC_NOERR) throw UserError(path + ": cannot be read as NetCDF: " + nc_strerror(status));
    return {path, id};
}

NetcdfFile NetcdfFile::create(const std::string& path) {
    int id = -1;
    const int status = nc_create(path.c_str(), NC_NETCDF4 | NC_CLOBBER, &id);
    if (status != NC_NOERR) throw UserError(path + ": cannot be written: " + nc_strerror(status));
    return {path, id};
}

NetcdfFile::~NetcdfFile() {
    if (id_ >= 0) nc_close(id_);
}

bool NetcdfFile::has(const std::string& variable) const {
    int id = -1;
    return nc_inq_varid(id_, variable.c_str(), &id) == NC_NOERR;
}

std::vector<std::string> NetcdfFile::variable_names() const {
    int count = 0;
    check(nc_inq_nvars(id_, &count), "variables");
    std::vector<std::string> names;
    for (int id = 0; id < count; ++id) {
        char name[NC_MAX_NAME + 1] = {};
        check(nc_inq_varname(id_, id, name), "variables");
        names.emplace_back(name);
    }
    return names;
}

std::vector<std::size_t> NetcdfFile::shape(const std::string& variable) const {
    const int id = variable_id(variable);
    int num_dims = 0;
    check(nc_inq_varndims(id_, id, &num_dims), variable);
    std::vector<int> dim_ids(static_cast<std::size_t>(num_dims));
    check(nc_inq_vardimid(id_, id, dim_ids.data()), variable);
    std::vector<std::size_t> lengths(dim_ids.size());
    for (std::size_t d = 0; d < dim_ids.size(); ++d) check(nc_inq_dimlen(id_, dim_ids[d], &lengths[d]), variable);
    return lengths;
}

std::vector<float> NetcdfFile::read_float(const std::string& variable) const {
    std::vector<float> values(length(variable));
    check(nc_get_var_float(id_, variable_id(variable), values.data()), variable);
    return values;
}

std::vector<double> NetcdfFile::read_double(const std::string& variable) const {
    std::vector<double> values(length(variable));
    check(nc_get_var_double(id_, variable_id(variable), values.data()), variable);
    return values;
}

std::vector<std::int64_t> NetcdfFile::read_int64(const std::string& variable) const {
    return read_int64(variable, std::vector<std::size_t>(shape(variable).size(), 0), shape(variable));
}

std::vector<std::int64_t> NetcdfFile::read_int64(const std::string& variable, const std::vector<std::size_t>& start,
                                                 const std::vector<std::size_t>& count) const {
    std::vector<long long> values(std::accumulate(count.begin(), count.end(), std::size_t{1}, std::multiplies<>()));
    if (values.empty()) return {};
    check(nc_get_vara_longlong(id_, variable_id(variable), start.data(), count.data(), values.data()), variable);
    return {values.begin(), values.end()};
}

void NetcdfFile::define(const std::string& variable, int type,
                        const std::vector<std::pair<std::string, std::size_t>>& dims) {
    std::vector<int> dim_ids;
    for (const auto& [name, size] : dims) {
        int dim_id = -1;
        if (nc_inq_dimid(id_, name.c_str(), &dim_id) != NC_NOERR) {
            check(nc_def_dim(id_, name.c_str(), size, &dim_id), name);
        }
        dim_ids.push_back(dim_id);
    }
    int id = -1;
    check(nc_def_var(id_, variable.c_str(), type, static_cast<int>(dim_ids.size()), dim_ids.data(), &id), variable);
}

void NetcdfFile::set_attribute(const std::string& name, const std::string& text) {
    check(nc_put_att_text(id_, NC_GLOBAL, name.c_str(), text.size(), text.c_str()), name);
}

void NetcdfFile::set_attribute(const std::string& name, std::int64_t number) {
    const long long value = number;
    check(nc_put_att_longlong(id_, NC_GLOBAL, name.c_str(), NC_INT64, 1, &value), name);
}

void NetcdfFile::end_definitions() { check(nc_enddef(id_), "definitions"); }

void NetcdfFile::write(const std::string& variable, const std::vector<double>& values) {
    check(nc_put_var_double(id_, variable_id(variable), values.data()), variable);
}

void NetcdfFile::write(const std::string& variable, const std::vector<std::int64_t>& values) {
    const std::vector<long long> copy(values.begin(), values.end());
    check(nc_put_var_longlong(id_, variable_id(variable), copy.data()), variable);
}

void NetcdfFile::close() { check(nc_close(std::exchange(id_, -1)), "closing"); }

int NetcdfFile::variable_id(const std::string& variable) const {
    int id = -1;
    const int status = nc_inq_varid(id_, variable.c_str(), &id);
    if (status != NC_NOERR) throw UserError(path_ + ": variable " + variable + " is missing");
    return id;
}

std::size_t NetcdfFile::length(const std::string& variable) const {
    const std::vector<std::size_t> lengths = shape(variable);
    return std::accumulate(lengths.begin(), lengths.end(), std::size_t{1}, std::multiplies<>());
}

void NetcdfFile::check(int status, const std::string& what) const {
    if (status != NC_NOERR) throw UserError(path_ + ": " + what + ": " + nc_strerror(status));
}

void check_writable(const std::string& path) {
    const bool existed = std::filesystem::exists(path);
    if (!std::ofstream(path, std::ios::app)) {
        throw UserError(path + ": cannot be written; check that its folder exists and that you can write to it");
    }
    if (!existed) std::filesystem::remove(path);
}
