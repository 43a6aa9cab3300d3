// A run folder that `mpitrain predict`, `export`, `report` and `train --resume` read: settings, model, metrics,
// statistics and a checkpoint, as mpitrain/train/checkpoint and mpitrain/models/files write them.
#pragma once

namespace {

std::string number_text(double number) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", number);
    return std::strpbrk(text, ".en") ? text : std::string(text) + ".0";
}

std::string in_json(const std::string& text) {
    std::string quoted = "\"";
    for (const char one : text) {
        if (one == '"' || one == '\\') quoted += '\\';
        if (one == '\n')
            quoted += "\\n";
        else
            quoted += one;
    }
    return quoted + '"';
}

/// A tensor of a file; the caller owns the bytes.
struct FileTensor {
    std::string name, shape, python_shape, dtype;  // "[16, 7]", "(16, 7)", "float32"
    const void* bytes;
    std::size_t num_bytes;
};

const char* const dtype_of_real = is_float ? "float32" : "float64";

std::string safetensors_of(const std::vector<FileTensor>& tensors, const std::string& metadata) {
    std::string header = "{" + metadata;
    std::size_t offset = 0;
    for (const FileTensor& one : tensors) {
        header += header.size() > 1 ? "," : "";
        header += in_json(one.name) + ":{\"dtype\":\"" + (one.dtype == "float32" ? "F32" : "F64") +
                  "\",\"shape\":" + one.shape + ",\"data_offsets\":[" + std::to_string(offset) + "," +
                  std::to_string(offset + one.num_bytes) + "]}";
        offset += one.num_bytes;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string content;
    for (int byte = 0; byte < 8; ++byte) content += static_cast<char>(header.size() >> (8 * byte) & 255);
    content += header;
    for (const FileTensor& one : tensors) content.append(static_cast<const char*>(one.bytes), one.num_bytes);
    return content;
}

/// Returns one hash of named tensors in their order, equal to `weights_sha256` of the package.
std::string weights_sha256(const std::vector<FileTensor>& tensors) {
    Sha256 digest;
    for (const FileTensor& one : tensors)
        digest.add(one.name + " " + one.python_shape + " torch." + one.dtype + " " +
                   sha256_of(one.bytes, one.num_bytes) + "\n");
    return digest.hexadecimal();
}

FileTensor tensor_of(const NamedTensor& one, const std::string& prefix, const std::string& suffix, const Real* first) {
    return {prefix + one.name + suffix, one.shape,
            one.python_shape,           dtype_of_real,
            first + one.first,          static_cast<std::size_t>(one.count) * sizeof(Real)};
}

/// Returns the parameters, in their order.
std::vector<FileTensor> parameters_of(const std::string& prefix, const std::string& suffix,
                                      const std::vector<Real>& values) {
    std::vector<FileTensor> tensors;
    for (const NamedTensor& one : parameter_tensors) tensors.push_back(tensor_of(one, prefix, suffix, values.data()));
    return tensors;
}

/// Returns parameters and statistics.
std::vector<FileTensor> state_of_model(const std::string& prefix, const Training& training,
                                       const std::vector<Real>& values) {
    std::vector<FileTensor> tensors = parameters_of(prefix, "", values);
    for (const NamedTensor& one : statistic_tensors)
        tensors.push_back(tensor_of(one, prefix, "", training.data.statistics));
    return tensors;
}

/// Writes a file completely or not at all. Throws std::runtime_error.
void write_file(const std::string& path, const std::string& content) {
    const std::string partial = path + ".partial";
    std::remove(partial.c_str());  // left by a killed model; removes a link, not its target
    std::FILE* file = std::fopen(partial.c_str(), "wbx");
    bool is_written = file && std::fwrite(content.data(), 1, content.size(), file) == content.size();
    is_written = is_written && std::fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = errno;
    if (file && std::fclose(file) != 0) is_written = false, error = errno;
    struct stat found;
    if (is_written && stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
        is_written = false, error = EEXIST;  // for example a device, which a rename would replace
    }
    if (is_written && std::rename(partial.c_str(), path.c_str()) == 0) return;
    if (is_written) error = errno;
    std::remove(partial.c_str());
    throw std::runtime_error(path + ": cannot be written (" + std::strerror(error) + ")");
}

/// Returns the content of a file. Throws std::runtime_error.
std::string read_file(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (!file) throw std::runtime_error(path + ": cannot be read (" + std::strerror(errno) + ")");
    std::string content;
    char block[65536];
    for (std::size_t count; (count = std::fread(block, 1, sizeof block, file)) > 0;) content.append(block, count);
    const bool is_bad = std::ferror(file) != 0;
    std::fclose(file);
    if (is_bad) throw std::runtime_error(path + ": cannot be read");
    return content;
}

void make_folder(const std::string& path) {
    if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
        throw std::runtime_error(path + ": cannot be created (" + std::strerror(errno) + ")");
}

void write_model(const std::string& path, const Training& training) {
    std::vector<FileTensor> tensors = state_of_model("", training, training.exported());
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    std::string description = description_before;
    for (int i = 0; i < num_inputs; ++i) {
        const Moments& found = training.data.moments[i];
        description +=
            std::string(i ? ", " : "") + in_json(number_text(found.minimum) + " " + number_text(found.maximum));
    }
    description += description_after;
    const std::string digest = sha256_of(weights_sha256(tensors) + "\n" + network_json + "\n" + description);
    write_file(path, safetensors_of(tensors, "\"__metadata__\":{\"network\":" + in_json(network_json) +
                                                 ",\"description\":" + in_json(description) + ",\"sha256\":\"" +
                                                 digest + "\"}"));
}

std::string progress_json(const Training& training) {
    const Progress& at = training.progress;
    const bool has_epoch = at.epoch > 0, has_validation = has_epoch && training.data.num_held_out > 0;
    const auto or_null = [](bool is_known, const std::string& text) { return is_known ? text : std::string("null"); };
    return "{\"best_epoch\": " + or_null(at.best_epoch > 0, std::to_string(at.best_epoch)) +
           ",\n\"best_loss\": " + or_null(at.best_epoch > 0, number_text(at.best_loss)) +
           ",\n\"epoch\": " + std::to_string(at.epoch) +
           ",\n\"epochs_without_improvement\": " + std::to_string(at.epochs_without_improvement) +
           ",\n\"global_step\": " + std::to_string(at.global_step) +
           ",\n\"step_in_epoch\": " + std::to_string(at.step_in_epoch) +
           ",\n\"stopped_early\": " + (at.stopped_early ? "true" : "false") +
           ",\n\"train_loss\": " + or_null(has_epoch, number_text(at.train_loss)) +
           ",\n\"validation_loss\": " + or_null(has_validation, number_text(at.validation_loss)) + "}";
}

void write_checkpoint(const std::string& path, const Training& training, const std::vector<Sums>& sums) {
    std::vector<FileTensor> tensors = state_of_model("model.", training, training.parameters);
    const auto take = [&tensors](const std::vector<FileTensor>& more) {
        tensors.insert(tensors.end(), more.begin(), more.end());
    };
    if (*first_moment_name) take(parameters_of("optimizer.", first_moment_name, training.first_moment));
    if (*second_moment_name) take(parameters_of("optimizer.", second_moment_name, training.second_moment));
    for (const NamedTensor& one : parameter_tensors)
        if (counts_steps)
            take({{std::string("optimizer.") + one.name + ".step", "[]", "()", "float32", &training.step_count,
                   sizeof training.step_count}});
    if (!training.best.empty()) take(parameters_of("best.", "", training.best));
    const std::string shape = "[" + std::to_string(num_microbatches) + ", 2]";
    take({{"engine.epoch_loss_sums", shape, "", "float64", sums.data(), sums.size() * sizeof(Sums)}});
    std::string content = safetensors_of(tensors, ""),
                manifest = "{\"file_sha256\": \"" + sha256_of(content) + "\",\n\"format_version\": 2,\n\"settings\": ";
    manifest += std::string(settings_json) + ",\n\"state\": " + progress_json(training) + ",\n\"tensors\": {";
    for (std::size_t i = 0; i < tensors.size(); ++i)
        manifest += (i ? ",\n" : "") + in_json(tensors[i].name) + ": {\"dtype\": \"torch." + tensors[i].dtype +
                    "\",\n\"sha256\": \"" + sha256_of(tensors[i].bytes, tensors[i].num_bytes) +
                    "\",\n\"shape\": " + tensors[i].shape + "}";
    manifest += "}}\n";
    const std::string digest = "\"manifest_sha256\": \"" + sha256_of(manifest) + "\"";
    const std::string of_record = sha256_of("{\n " + digest + "\n}\n");
    make_folder(path);
    write_file(path + "/tensors.safetensors", content);
    write_file(path + "/manifest.json", manifest);
    write_file(path + "/commit.json", "{\n " + digest + ",\n \"record_sha256\": \"" + of_record + "\"\n}\n");
}

std::string statistics_text(const FrozenSamples& data) {
    const std::int64_t valid = data.num_training + data.num_held_out;
    std::string text = "{\n \"samples\": {\"kept\": " + std::to_string(valid + data.num_dropped) +
                       ", \"valid\": " + std::to_string(valid) +
                       ", \"training\": " + std::to_string(data.num_training) +
                       ", \"validation\": " + std::to_string(data.num_held_out) +
                       "},\n \"weighted_by\": \"count\",\n \"variables\": [";
    for (int c = 0; c < num_values; ++c) {
        const Moments& found = data.moments[c];
        text += std::string(c ? "," : "") + "\n  {" + described_values[c] + ", \"mean\": " + number_text(found.mean) +
                ", \"std\": " + number_text(found.std()) + ", \"minimum\": " + number_text(found.minimum) +
                ", \"maximum\": " + number_text(found.maximum) + ", \"weight\": " + number_text(found.count) +
                ", \"missing\": 0}";
    }
    return text + "\n ]\n}\n";
}

/// Writes the complete run folder. Called on one rank. Throws std::runtime_error.
void write_run(const std::string& folder, const Training& training, const std::vector<Sums>& sums) {
    const std::string config = folder + "/config.yaml";
    char step[40];
    std::snprintf(step, sizeof step, "/step-%08lld", static_cast<long long>(training.progress.global_step));
    make_folder(folder);
    if (access(config.c_str(), F_OK) == 0 && read_file(config) != config_yaml)
        throw std::runtime_error(folder + ": contains another run; give another folder");
    write_file(config, config_yaml);
    write_file(folder + "/statistics.json", statistics_text(training.data));
    write_file(folder + "/metrics.jsonl", training.metrics);
    write_model(folder + "/model.safetensors", training);
    make_folder(folder + "/checkpoints");
    write_checkpoint(folder + "/checkpoints" + step, training, sums);
}

}  // namespace
