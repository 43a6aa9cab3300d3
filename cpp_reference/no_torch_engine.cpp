// Replaces torch_engine.cpp and model_file.cpp if libtorch is not available.
#include "engine.hpp"
#include "errors.hpp"

bool torch_engine_is_built() { return false; }

std::string torch_build() { return "built without libtorch"; }

template <typename Real>
std::unique_ptr<Engine<Real>> make_torch_engine(const Weights&, const Options&) {
    throw UserError("--engine torch: this program was built without libtorch; give --engine plain");
}

template std::unique_ptr<Engine<float>> make_torch_engine(const Weights&, const Options&);
template std::unique_ptr<Engine<double>> make_torch_engine(const Weights&, const Options&);

template <typename Real>
ColumnSums<Real> torch_column_sums(const std::vector<Real>&) {
    throw UserError("--engine torch: this program was built without libtorch; give --engine plain");
}

template ColumnSums<float> torch_column_sums(const std::vector<float>&);
template ColumnSums<double> torch_column_sums(const std::vector<double>&);

template <typename Real>
OnePassMoments<Real> torch_one_pass_moments(const ColumnSums<Real>&, Real) {
    throw UserError("--engine torch: this program was built without libtorch; give --engine plain");
}

template OnePassMoments<float> torch_one_pass_moments(const ColumnSums<float>&, float);
template OnePassMoments<double> torch_one_pass_moments(const ColumnSums<double>&, double);

Model read_model(const std::string& path) {
    throw UserError(path + ": this program was built without libtorch, which reads such files");
}
