#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "network.hpp"
#include "options.hpp"

/// Named arrays in the order in which a difference between two programs would arise. Kept in memory by rank 0 and
/// written as one NetCDF file; numbers as NC_FLOAT or NC_DOUBLE, whichever the precision is.
class Trace {
  public:
    using Dimensions = std::vector<std::pair<std::string, std::size_t>>;

    void set_attribute(const std::string& name, const std::string& text) { texts_.emplace_back(name, text); }
    void set_attribute(const std::string& name, std::int64_t number) { numbers_.emplace_back(name, number); }
    void add(const std::string& name, Dimensions dimensions, std::vector<double> values);
    void add(const std::string& name, Dimensions dimensions, std::vector<std::int64_t> values);
    /// The parameters in flat (K), each as <prefix>.<its name>.
    void add_parameters(const std::string& prefix, const std::vector<double>& flat, const Sizes& sizes);

    /// Writes beside the path, then renames: a half-written trace never has the final name. Throws UserError.
    void write(const std::string& path, Precision precision) const;

  private:
    struct Entry {
        std::string name;
        Dimensions dimensions;
        bool is_integer;
        std::vector<double> reals;
        std::vector<std::int64_t> integers;
    };
    std::vector<Entry> entries_;
    std::vector<std::pair<std::string, std::string>> texts_;
    std::vector<std::pair<std::string, std::int64_t>> numbers_;
};
