#pragma once
#include <string>

#include "mpi_session.hpp"
#include "options.hpp"

/// Collective. Times training steps on synthetic samples; on rank 0 returns one line of JSON with the time of each step
/// in microseconds and the norm of all weights behind the last, elsewhere "". Throws AgreedError.
template <typename Real>
std::string run_benchmark(const MpiSession& mpi, const Options& options);
