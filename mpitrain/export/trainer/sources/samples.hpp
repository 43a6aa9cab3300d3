// The samples added to a trainer, and the K samples over all ranks that it keeps: those of a collection with the
// same settings.
//
//   K samples kept      C = F + O values of a sample
#pragma once

namespace {

constexpr int num_inputs = sizes[0], num_targets = sizes[num_layers], num_values = num_inputs + num_targets;

/// A kept sample as it is communicated and stored.
struct Record {
    std::int64_t step, cell;
    float values[num_values];
};

/// Runs `action`, which may allocate, on every rank; throws bad_alloc on all ranks if it fails on one. Collective.
template <class Action>
void together(MPI_Comm comm, const Action& action) {
    int has_memory = 1, all_have = 0;
    try {
        action();
    } catch (const std::bad_alloc&) {
        has_memory = 0;
    }
    MPI_Allreduce(&has_memory, &all_have, 1, MPI_INT, MPI_MIN, comm);
    if (!all_have) throw std::bad_alloc();
}

/// Returns whether a sample comes before another one in a collection's file.
bool comes_before(const Record& one, const Record& other) {
    if (one.step != other.step) return one.step < other.step;
    if (one.cell != other.cell) return one.cell < other.cell;
    return std::memcmp(one.values, other.values, sizeof one.values) < 0;
}

bool is_same_place(const Record& one, const Record& other) { return one.step == other.step && one.cell == other.cell; }

/// The samples added on this rank that may be among the K samples to keep.
class ShownSamples {
  public:
    ShownSamples() : kept_(sampling::room_for(capacity)), rows_(kept_.size() * num_values) { forget(); }

    void forget() { lowest_ = sampling::empty_stratum(kept_.data(), 0); }

    /// Adds samples of a step; returns how many are left out because a value is not a finite float.
    std::int64_t add(std::int64_t count, const std::int64_t* cells, std::int64_t step, sampling::values_view inputs,
                     sampling::values_view targets) {
        std::int64_t left_out = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            Record one{step, cells[i], {}};
            const bool has_inputs = sampling::take(one.values, inputs, i, 1, num_inputs);
            if (sampling::take(one.values + num_inputs, targets, i, 1, num_targets) && has_inputs) {
                keep(one);
            } else {
                ++left_out;
            }
        }
        return left_out;
    }

    void keep(const Record& one) {
        const std::uint64_t stream = sampling::stream_of_step(collection_seed, one.step);
        const sampling::sample_key key = {sampling::hash_of_cell(stream, one.cell), sampling::ordered(one.step),
                                          sampling::ordered(one.cell)};
        const std::ptrdiff_t row = sampling::row_for(&lowest_, capacity, &key);
        if (row >= 0) std::memcpy(rows_.data() + row * num_values, one.values, sizeof one.values);
    }

    /// Returns the K samples of all ranks, sorted, on every rank; throws bad_alloc on all or on none. Collective.
    std::vector<Record> gather(MPI_Comm comm) {
        std::int64_t counts[2 * sampling::CANDIDATES];
        sampling::sort_kept(&lowest_);
        sampling::agree_limits(&lowest_, 1, capacity, counts, comm);
        std::vector<Record> own, all;
        together(comm, [&] { own = those_to_keep(); });
        gather_into(all, own, comm);
        std::sort(all.begin(), all.end(), comes_before);
        return all;
    }

  private:
    std::vector<Record> those_to_keep() const {
        std::vector<Record> own;
        for (std::size_t i = 0; i < lowest_.count; ++i) {
            const sampling::kept_sample& one = lowest_.kept[i];
            if (sampling::compare_keys(&one.key, &lowest_.limit) > 0) continue;
            own.push_back({sampling::unordered(one.key.step), sampling::unordered(one.key.cell), {}});
            std::memcpy(own.back().values, rows_.data() + one.row * num_values, sizeof own.back().values);
        }
        return own;
    }

    static void gather_into(std::vector<Record>& all, const std::vector<Record>& own, MPI_Comm comm) {
        int num_ranks = 0, total = 0;
        MPI_Comm_size(comm, &num_ranks);
        std::vector<int> counts, places;
        together(comm, [&] {
            counts.resize(static_cast<std::size_t>(num_ranks));
            places.reserve(counts.size());
        });
        const int num_own = static_cast<int>(own.size());
        MPI_Allgather(&num_own, 1, MPI_INT, counts.data(), 1, MPI_INT, comm);
        for (const int count : counts) places.push_back(total), total += count;
        together(comm, [&] { all.resize(static_cast<std::size_t>(total)); });
        MPI_Datatype record;
        MPI_Type_contiguous(sizeof(Record), MPI_BYTE, &record);
        MPI_Type_commit(&record);
        MPI_Allgatherv(own.data(), num_own, record, all.data(), counts.data(), places.data(), record, comm);
        MPI_Type_free(&record);
    }

    static constexpr std::size_t capacity = num_kept;
    std::vector<sampling::kept_sample> kept_;
    std::vector<float> rows_;
    sampling::stratum lowest_;
};

}  // namespace
