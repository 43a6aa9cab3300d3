#pragma once
#include <memory>

#include "engine.hpp"

/// The plain engine for chains of any depth and for any output activation.
template <typename Real>
std::unique_ptr<Engine<Real>> make_plain_chain(const Weights& weights, const Options& options);
