#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "network.hpp"
#include "options.hpp"

/// Named arrays, in the order in which they are computed, to find the first difference between two programs. Rank 0
/// keeps them in memory and writes one NetCDF file; numbers are NC_FLOAT or NC_DOUBLE according to the precision.
class Trace {
  public:
    using Dimensions = std::vector<std::pair<std::string, std::size_t>>;

    void set_attribute(const std::string& name, const std::string& text) { texts_.emplace_back(name, text); }
    void set_attribute(const std::string& name, std::int64_t number) { numbers_.emplace_back(name, number); }
    void add(const std::string& name, Dimensions dimensions, std::vector<double> values);
    void add(const std::string& name, Dimensions dimensions, std::vector<std::int64_t> values);
    /// Adds the parameters in flat (K), each as <prefix>.<parameter name>.
    void add_parameters(const std::string& prefix, const std::vector<double>& flat, const Sizes& sizes);

    /// Writes <path>.partial, then renames it, so that an incomplete trace never has the final name. Throws UserError.
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
