// Restart files: the complete state of a trainer as bytes, with their hash; read on any number of ranks.
//
//   V microbatches of a batch      n parameters
#pragma once

namespace {

/// Appends plain numbers to bytes, or reads them in the same order. Throws std::runtime_error at the end of the bytes.
class Bytes {
  public:
    Bytes() = default;
    explicit Bytes(const std::string& content) : content(content) {}

    template <class Number>
    void put(const Number* numbers, std::size_t count) {
        content.append(reinterpret_cast<const char*>(numbers), count * sizeof(Number));
    }
    template <class Number>
    void take(Number* numbers, std::size_t count) {
        const std::size_t num_bytes = count * sizeof(Number);
        if (num_bytes > content.size() - place_) throw std::runtime_error("the restart file ends too early");
        content.copy(reinterpret_cast<char*>(numbers), num_bytes, place_);
        place_ += num_bytes;
    }
    template <class Number>
    void put_all(const std::vector<Number>& numbers) {
        const std::uint64_t count = numbers.size();
        put(&count, 1);
        put(numbers.data(), count);
    }
    template <class Number>
    std::vector<Number> take_all() {
        std::uint64_t count = 0;
        take(&count, 1);
        if (count > content.size() / sizeof(Number)) throw std::runtime_error("the restart file is damaged");
        std::vector<Number> numbers(count);
        take(numbers.data(), count);
        return numbers;
    }

    std::string content;

  private:
    std::size_t place_ = 0;
};

const std::string restart_magic = "mpitrain trainer 1\n";

/// Returns the hash of all settings that must be equal in the trainers that write and read a restart file.
std::string settings_hash() { return sha256_of(std::string(config_yaml) + settings_json + collection_text); }

void put_training(Bytes& bytes, const Training& training, const std::vector<Sums>& sums) {
    bytes.put(&training.progress, 1);
    bytes.put(&training.step_count, 1);
    for (const auto* vector : {&training.parameters, &training.first_moment, &training.second_moment, &training.best})
        bytes.put_all(*vector);
    bytes.put_all(sums);
    bytes.put_all(std::vector<char>(training.metrics.begin(), training.metrics.end()));
}

/// Returns whether the progress is valid for these samples. A correct hash does not prove this: it can be forged.
bool is_possible(const Progress& at, const FrozenSamples& data) {
    return at.epoch >= 0 && at.epoch <= num_epochs && at.step_in_epoch >= 0 &&
           at.step_in_epoch < data.steps_per_epoch && at.global_step >= 0 && at.best_epoch >= 0 &&
           at.best_epoch <= at.epoch;
}

void take_training(Bytes& bytes, Training& training) {
    bytes.take(&training.progress, 1);
    if (!is_possible(training.progress, training.data)) throw std::runtime_error("the restart file is damaged");
    bytes.take(&training.step_count, 1);
    for (auto* vector : {&training.parameters, &training.first_moment, &training.second_moment}) {
        const std::vector<Real> found = bytes.take_all<Real>();
        if (found.size() != vector->size()) throw std::runtime_error("the restart file is of another network");
        std::copy(found.begin(), found.end(), vector->begin());  // in place: the kernel keeps pointers to this memory
    }
    training.best = bytes.take_all<Real>();
    if (!training.best.empty() && training.best.size() != training.parameters.size())
        throw std::runtime_error("the restart file is of another network");
    const std::vector<Sums> sums = bytes.take_all<Sums>();
    if (sums.size() != training.sums.size()) throw std::runtime_error("the restart file is of another network");
    std::copy(sums.begin(), sums.end(), training.sums.begin());
    const std::vector<char> metrics = bytes.take_all<char>();
    training.metrics.assign(metrics.begin(), metrics.end());
}

/// Returns the content between the magic and the hash. Throws std::runtime_error.
std::string checked_restart(const std::string& path, const std::string& file) {
    const std::size_t before = restart_magic.size() + 64;
    if (file.size() < before + 64 || file.compare(0, restart_magic.size(), restart_magic) != 0)
        throw std::runtime_error(path + ": is not a restart file of a trainer");
    if (file.compare(restart_magic.size(), 64, settings_hash()) != 0)
        throw std::runtime_error(path + ": was written by a trainer with other settings");
    const std::string content = file.substr(before, file.size() - before - 64);
    if (file.compare(file.size() - 64, 64, sha256_of(content)) != 0)
        throw std::runtime_error(path + ": is damaged; take another restart file");
    return content;
}

}  // namespace
