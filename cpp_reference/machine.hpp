#pragma once
#include <string>

#include "mpi_session.hpp"
#include "trace.hpp"

/// The CPU as this process sees it: maker, numbers, brand and instruction sets. CPUID or HWCAP answer, which an
/// emulator answers too; /proc/cpuinfo would be the host's. Python's cluster/cpu/identity.py writes the same text.
std::string cpu_identity();

/// Collective. What bits may depend on beside the program, a line for each rank: CPU, libtorch, MPI library, settings
/// of vendors' libraries. Only rank 0's trace holds anything.
void trace_machine(const MpiSession& mpi, Trace& trace);
