#pragma once
#include <string>

#include "mpi_session.hpp"
#include "options.hpp"

/// Collective. Times training steps on synthetic samples. Returns, on rank 0, one line of JSON with the time of each
/// step in microseconds and the norm of all weights after the last step; "" on other ranks. Throws AgreedError.
template <typename Real>
std::string run_benchmark(const MpiSession& mpi, const Options& options);
