// compare_files A.nc B.nc PREFIX TOLERANCE: every variable of B against PREFIX + its name in A. Prints the first
// difference and exits 1. Tolerance 0 means bit for bit; otherwise the largest absolute difference that is allowed.
// partition_count is left out: it is the one variable that must change with the number of ranks.
#include <cmath>
#include <cstring>
#include <iostream>

#include "netcdf_file.hpp"

namespace {

/// NaN anywhere is infinitely far.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return HUGE_VAL;
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double difference = std::abs(a[i] - b[i]);
        if (!(difference <= largest)) largest = std::isnan(difference) ? HUGE_VAL : difference;
    }
    return largest;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 5) throw std::runtime_error("usage: compare_files A.nc B.nc PREFIX TOLERANCE");
    const NetcdfFile a = NetcdfFile::open(argv[1]), b = NetcdfFile::open(argv[2]);
    const std::string prefix = argv[3];
    const double tolerance = std::stod(argv[4]);
    double largest = 0;
    bool all_same = true;
    std::size_t compared = 0;
    for (const std::string& name : b.variable_names()) {
        if (name == "partition_count") continue;
        const std::vector<double> left = a.read_double(prefix + name), right = b.read_double(name);
        const bool same = same_bits(left, right);
        const double difference = largest_difference(left, right);
        if (!same && !(difference <= tolerance && tolerance > 0)) {
            std::cout << name << ": differs by " << difference << "; allowed " << tolerance << "\n";
            return 1;
        }
        all_same = all_same && same;
        largest = std::max(largest, difference);
        ++compared;
    }
    if (compared == 0) throw std::runtime_error(std::string(argv[2]) + ": nothing to compare");
    std::cout << compared << " variables, " << (all_same ? "equal bit for bit" : "largest difference ");
    if (!all_same) std::cout << largest;
    std::cout << "\n";
    return 0;
} catch (const std::exception& error) {
    std::cerr << "compare_files: " << error.what() << "\n";
    return 2;
}
