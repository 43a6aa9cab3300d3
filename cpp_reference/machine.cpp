#include "machine.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "engine.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace {

#if defined(__x86_64__)

using Registers = std::array<std::uint32_t, 4>;  // eax, ebx, ecx, edx

constexpr std::uint32_t features = 1, more_features = 7, extended = 0x80000001;
constexpr std::uint32_t first_brand_leaf = 0x80000002, last_brand_leaf = 0x80000004;
constexpr std::uint32_t os_saves_registers = 1U << 27;  // otherwise XGETBV is an invalid instruction
// Bits of XCR0: the system saves these registers on a context switch.
constexpr std::uint32_t avx_saved = 0x06, avx512_saved = 0xE6;

struct InstructionSet {
    const char* name;  // as in compiler flags
    std::uint32_t leaf;
    std::size_t position;  // in Registers
    unsigned bit;
    std::uint32_t saved;
};

// Python's cluster/cpu/identity.py has the same table.
constexpr InstructionSet instruction_sets[] = {
    {"sse3", features, 2, 0, 0},
    {"ssse3", features, 2, 9, 0},
    {"sse4.1", features, 2, 19, 0},
    {"sse4.2", features, 2, 20, 0},
    {"popcnt", features, 2, 23, 0},
    {"cx16", features, 2, 13, 0},
    {"sahf", extended, 2, 0, 0},
    {"movbe", features, 2, 22, 0},
    {"bmi", more_features, 1, 3, 0},
    {"bmi2", more_features, 1, 8, 0},
    {"lzcnt", extended, 2, 5, 0},
    {"avx", features, 2, 28, avx_saved},
    {"f16c", features, 2, 29, avx_saved},
    {"fma", features, 2, 12, avx_saved},
    {"avx2", more_features, 1, 5, avx_saved},
    {"avx512f", more_features, 1, 16, avx512_saved},
    {"avx512bw", more_features, 1, 30, avx512_saved},
    {"avx512cd", more_features, 1, 28, avx512_saved},
    {"avx512dq", more_features, 1, 17, avx512_saved},
    {"avx512vl", more_features, 1, 31, avx512_saved},
};

/// Returns the registers of a CPUID leaf; all are 0 if this CPU does not have it.
Registers ask(std::uint32_t leaf) {
    Registers r = {};
    __get_cpuid_count(leaf, 0, &r[0], &r[1], &r[2], &r[3]);
    return r;
}

std::uint32_t saved_registers() {
    if (!(ask(features)[2] & os_saves_registers)) return 0;
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

template <std::size_t count>
std::string text_of(const std::array<std::uint32_t, count>& words) {
    std::array<char, 4 * count + 1> text = {};
    std::memcpy(text.data(), words.data(), 4 * count);
    return text.data();
}

/// Returns the brand without the blanks with which vendors pad it.
std::string brand() {
    std::string padded;
    for (std::uint32_t leaf = first_brand_leaf; leaf <= last_brand_leaf; ++leaf) padded += text_of(ask(leaf));
    std::string text;
    for (const char letter : padded) {
        if (letter != ' ' || (!text.empty() && text.back() != ' ')) text += letter;
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text.empty() ? "no brand" : text;
}

std::string name_of_cpu() {
    const Registers first = ask(0);
    const std::uint32_t signature = ask(features)[0];
    std::uint32_t family = signature >> 8 & 0xF, model = signature >> 4 & 0xF;
    if (family == 6 || family == 15) model += (signature >> 16 & 0xF) << 4;
    if (family == 15) family += signature >> 20 & 0xFF;
    return text_of(std::array{first[1], first[3], first[2]}) + " family " + std::to_string(family) + " model " +
           std::to_string(model) + " (" + brand() + ")";
}

std::string names_of_instruction_sets() {
    const std::uint32_t saved = saved_registers();
    std::string names;
    for (const InstructionSet& set : instruction_sets) {
        if (ask(set.leaf)[set.position] >> set.bit & 1 && (saved & set.saved) == set.saved) {
            names += std::string(" ") + set.name;
        }
    }
    return names;
}

#elif defined(__aarch64__) && defined(__linux__)

std::string name_of_cpu() { return "aarch64"; }

std::string names_of_instruction_sets() {
    constexpr std::pair<const char*, unsigned> bits[] = {{"fp", 0}, {"asimd", 1}, {"lse", 8}, {"sve", 22}};
    const unsigned long found = getauxval(AT_HWCAP);
    std::string names;
    for (const auto& [name, bit] : bits) {
        if (found >> bit & 1) names += std::string(" ") + name;
    }
    return names;
}

#else

std::string name_of_cpu() { return "a CPU that cannot be asked"; }
std::string names_of_instruction_sets() { return " unknown"; }

#endif

std::string mpi_library() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = {};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    return text.data();
}

/// Returns the variables by which vendors' libraries choose their instructions, as Python's cluster/facts.py.
std::string vendor_settings() {
    std::string settings;
    for (const char* name : {"ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
                             "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE"}) {
        const char* value = std::getenv(name);
        if (value) settings += (settings.empty() ? "" : " ") + std::string(name) + "=" + value;
    }
    return settings;
}

/// Collective. Returns, on rank 0, one line per rank, in rank order.
std::string line_of_each_rank(const MpiSession& mpi, std::string text) {
    text = text.substr(0, text.find('\n')) + '\n';  // an MPI library's version has several lines; the first is its name
    const std::vector<char> all = mpi.gather(std::vector<char>(text.begin(), text.end()));
    return {all.begin(), all.end()};
}

}  // namespace

std::string cpu_identity() { return name_of_cpu() + "; instruction sets:" + names_of_instruction_sets(); }

void trace_machine(const MpiSession& mpi, Trace& trace) {
    trace.set_attribute("cpu", line_of_each_rank(mpi, cpu_identity()));
    trace.set_attribute("torch", line_of_each_rank(mpi, torch_build()));
    trace.set_attribute("mpi_library", line_of_each_rank(mpi, mpi_library()));
    trace.set_attribute("vendor_settings", line_of_each_rank(mpi, vendor_settings()));
}
