#include "selection.hpp"

#include <cmath>

#include "errors.hpp"

namespace {

constexpr float fill_limit = 1e29F;  // CICE writes 1e30 for a missing value

bool is_valid(float value) { return std::abs(value) < fill_limit; }  // false for NaN too

bool is_selected(const History& history, std::size_t i, float poleward, bool clean_data) {
    if (!clean_data) return poleward > 60;
    return history.mask[i] == 1 && poleward > 40 && history.aice[i] > 0 && history.aice[i] <= 1;
}

}  // namespace

std::vector<std::int64_t> select_points(const History& history, Pole pole, bool clean_data) {
    std::vector<std::int64_t> points;
    for (std::size_t i = 0; i < history.latitude.size(); ++i) {
        const float poleward = pole == Pole::north ? history.latitude[i] : -history.latitude[i];
        if (is_selected(history, i, poleward, clean_data)) points.push_back(static_cast<std::int64_t>(i));
    }
    return points;
}

std::vector<std::int64_t> drop_invalid(const History& history, const std::vector<std::int64_t>& points) {
    std::vector<std::int64_t> valid;
    for (const std::int64_t point : points) {
        const auto i = static_cast<std::size_t>(point);
        bool all_valid = is_valid(history.aice[i]);
        for (const std::vector<float>& input : history.inputs) all_valid = all_valid && is_valid(input[i]);
        if (all_valid) valid.push_back(point);
    }
    return valid;
}

void check_valid(const History& history, const std::vector<std::int64_t>& points) {
    const auto check = [&points](const std::string& name, const std::vector<float>& field) {
        for (const std::int64_t point : points) {
            if (!is_valid(field[static_cast<std::size_t>(point)])) {
                throw UserError(name + ": NaN or a fill value at grid point " + std::to_string(point) +
                                "; not allowed in reference semantics, --semantics standard drops these samples");
            }
        }
    };
    check("aice_h", history.aice);
    for (std::size_t f = 0; f < num_features; ++f) check(input_names[f], history.inputs[f]);
}
