#include "prediction.hpp"

#include "trace.hpp"

namespace {

/// Names of the derivatives, in the order of the inputs.
constexpr std::array<const char*, num_features> derivative_names = {"dcdtair", "dcdtsfc", "dcdt", "dcds",
                                                                    "dcdhs",   "dcdhi",   "dcdsi"};

std::vector<double> at_points(const std::vector<float>& field, const std::vector<std::int64_t>& points) {
    std::vector<double> values;
    values.reserve(points.size());
    for (const std::int64_t point : points) values.push_back(field[static_cast<std::size_t>(point)]);
    return values;
}

}  // namespace

void write_prediction(const std::string& path, const History& history, const std::vector<std::int64_t>& points,
                      const Prediction& prediction) {
    const Trace::Dimensions n = {{"n", points.size()}};
    Trace file;
    file.add("lon", n, at_points(history.longitude, points));
    file.add("lat", n, at_points(history.latitude, points));
    file.add("aice", n, at_points(history.aice, points));
    file.add("aice_ffnn", n, prediction.y);
    for (std::size_t f = 0; f < num_features; ++f) {
        std::vector<double> derivative;
        for (std::size_t i = f; i < prediction.jacobian.size(); i += num_features) {
            derivative.push_back(prediction.jacobian[i]);
        }
        file.add(derivative_names[f], n, derivative);
    }
    file.write(path, Precision::float32);
}
