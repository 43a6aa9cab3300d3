#pragma once
#include <cstdint>

#include "network.hpp"

/// Returns the initial weights of the sea-ice network 7-H-1 in standard semantics, as the Python package draws them
/// from keyed random numbers: the same bits on every machine. See mpitrain/models/first_weights.py.
Weights first_weights(std::int64_t hidden_size, std::uint64_t seed);
