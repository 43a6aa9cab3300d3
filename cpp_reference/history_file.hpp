#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "network.hpp"

/// One time level of a CICE history file, float32, each field flattened row-major: point i = j * ni + ii.
struct History {
    std::vector<float> latitude;   // degrees
    std::vector<float> longitude;  // degrees
    std::vector<float> mask;       // 1 = ocean
    std::vector<float> aice;       // target, 0..1
    std::array<std::vector<float>, num_features> inputs;
};

/// The inputs, in the same order everywhere; units C, C, C, ppt, m, m, ppt.
constexpr std::array<const char*, num_features> input_names = {"Tair_h", "Tsfc_h", "sst_h", "sss_h",
                                                               "hs_h",   "hi_h",   "sice_h"};

/// Throws UserError if the file or a variable is missing, or a shape is wrong.
History read_history(const std::string& path);
