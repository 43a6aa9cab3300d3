#pragma once
#include <cstdint>

#include "network.hpp"

/// The weights that the Python package draws for the sea-ice network 7-H-1 in standard semantics, from keyed random
/// numbers: the same bits on every machine. See mpitrain/models/first_weights.py.
Weights first_weights(std::int64_t hidden_size, std::uint64_t seed);
