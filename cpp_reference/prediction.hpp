#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine.hpp"
#include "history_file.hpp"

/// Writes lon lat aice aice_ffnn dcdtair dcdtsfc dcdt dcds dcdhs dcdhi dcdsi of these grid points over dimension n, in
/// the format of the original program. Throws UserError.
void write_prediction(const std::string& path, const History& history, const std::vector<std::int64_t>& points,
                      const Prediction& prediction);
