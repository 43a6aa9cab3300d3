#pragma once
#include <string>

#include "mpi_session.hpp"
#include "trace.hpp"

/// Returns the CPU as this process sees it: vendor, family, model, brand and instruction sets, from CPUID or HWCAP. An
/// emulator provides these too, while /proc/cpuinfo describes the host. Python's cluster/cpu/identity.py writes the
/// same.
std::string cpu_identity();

/// Collective. Adds the facts on which results may depend, one line per rank: CPU, libtorch, MPI library, settings of
/// vendors' libraries. They are complete in rank 0's trace only.
void trace_machine(const MpiSession& mpi, Trace& trace);
