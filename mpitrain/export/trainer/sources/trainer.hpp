// The functions that a model calls: see the header. No exception leaves a call; a collective that fails on one rank
// returns a failure on all.
#pragma once

struct NAME(trainer) {
    MPI_Comm comm = MPI_COMM_NULL;
    int rank = 0;
    bool is_open = false, was_shown = false;
    std::string message;
    std::unique_ptr<ShownSamples> shown;
    std::vector<Record> records;  // once frozen
    std::unique_ptr<Training> training;
};

namespace {

using Trainer = NAME(trainer);

int failed(Trainer& trainer, int status, const std::string& message) {
    trainer.message = message;
    return status;
}

/// Returns the lowest status of all ranks; negative ones are failures. Collective.
int agreed(Trainer& trainer, int status) {
    int worst = status;
    if (MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MIN, trainer.comm) != MPI_SUCCESS) return TRAINER_NOT_OPEN;
    if (worst < 0 && status >= 0) trainer.message = "another rank failed";
    return worst;
}

/// Runs `action` and returns its status; an exception is converted to a status.
template <class Action>
int guarded(Trainer& trainer, const Action& action) {
    try {
        return action();
    } catch (const std::bad_alloc&) {
        return failed(trainer, TRAINER_NO_MEMORY, "not enough memory for the samples; keep fewer");
    } catch (const std::exception& error) {
        return failed(trainer, TRAINER_FILE_FAILED, error.what());
    }
}

/// Returns whether the compiler rounds each operation separately, as IEEE 754 requires.
bool is_compiled_well() {
    volatile double third = 1.0 / 3.0, three = 3.0, minus_one = -1.0;
    const double a = third, b = three, c = minus_one;
    const double fused_or_not = a * b + c;  // 0, or -2^-54 if the product is not rounded
    return fused_or_not == 0.0;
}

/// Collective.
int begin_training(Trainer& trainer, std::vector<Record> records) {
    const IeeeArithmetic here;
    FrozenSamples data;
    std::unique_ptr<Training> training;
    together(trainer.comm, [&] { data = frozen(records); });
    if (data.num_training == 0) return failed(trainer, TRAINER_NO_SAMPLES, "no finite sample was added yet");
    if (batch_size > data.num_training)
        return failed(trainer, TRAINER_NO_SAMPLES, "fewer samples to train on than training.global_batch_size");
    together(trainer.comm, [&] { training.reset(new Training(std::move(data), trainer.comm)); });
    trainer.records = std::move(records);
    trainer.training = std::move(training);
    return TRAINER_OK;
}

int freeze(Trainer& trainer) {
    std::vector<Record> records = trainer.shown->gather(trainer.comm);
    const bool has_twice = std::adjacent_find(records.begin(), records.end(), is_same_place) != records.end();
    const int status = begin_training(trainer, std::move(records));
    if (status != TRAINER_OK || !has_twice) return status;
    return failed(trainer, TRAINER_SHOWN_TWICE,
                  "a step and cell was added more than once, such as a halo cell of a tile");
}

int take_steps(Trainer& trainer, std::int64_t num_steps, double* loss) {
    for (std::int64_t taken = 0; taken < num_steps; ++taken) {
        if (trainer.training->is_finished()) return TRAINER_FINISHED;
        const double found = trainer.training->take_step();
        if (loss) *loss = found;
        if (!std::isfinite(found))
            return failed(trainer, TRAINER_DIVERGED,
                          "the loss is not finite; lower training.optimizer.learning_rate");
    }
    return TRAINER_OK;
}

int write_restart(Trainer& trainer, const char* path) {
    const std::int32_t is_frozen = trainer.training != nullptr;
    return guarded(trainer, [&] {
        const std::vector<Record> shown = is_frozen ? std::vector<Record>() : trainer.shown->gather(trainer.comm);
        const std::vector<Sums>* sums = is_frozen ? &trainer.training->all_sums() : nullptr;
        if (trainer.rank != 0) return TRAINER_OK;
        Bytes bytes;
        bytes.put(&is_frozen, 1);
        bytes.put_all(is_frozen ? trainer.records : shown);
        if (is_frozen) put_training(bytes, *trainer.training, *sums);
        write_file(path, restart_magic + settings_hash() + bytes.content + sha256_of(bytes.content));
        return TRAINER_OK;
    });
}

int take_restart(Trainer& trainer, const std::string& content) {
    Bytes bytes;
    std::int32_t is_frozen = 0;
    std::vector<Record> records;
    together(trainer.comm, [&] {
        bytes.content = content;
        bytes.take(&is_frozen, 1);
        records = bytes.take_all<Record>();
    });
    if (is_frozen) {
        const int status = begin_training(trainer, std::move(records));
        if (status == TRAINER_OK) take_training(bytes, *trainer.training);
        return status;
    }
    for (const Record& one : records)
        if (trainer.rank == 0) trainer.shown->keep(one);
    trainer.was_shown = true;
    return TRAINER_OK;
}

int read_restart(Trainer& trainer, const char* path) {
    std::string content;
    int status = guarded(trainer, [&] {
        if (trainer.rank == 0) content = checked_restart(path, read_file(path));
        return TRAINER_OK;
    });
    if ((status = agreed(trainer, status)) != TRAINER_OK) return status;
    std::uint64_t length = content.size();
    MPI_Bcast(&length, 1, MPI_UINT64_T, 0, trainer.comm);
    status = guarded(trainer, [&] { return content.resize(length), TRAINER_OK; });
    if ((status = agreed(trainer, status)) != TRAINER_OK) return status;
    constexpr std::uint64_t most = 1 << 30;
    for (std::uint64_t first = 0; first < length; first += most)
        MPI_Bcast(&content[first], static_cast<int>(std::min(most, length - first)), MPI_BYTE, 0, trainer.comm);
    status = agreed(trainer, guarded(trainer, [&] { return take_restart(trainer, content); }));
    if (status < 0) trainer.training.reset();  // on all ranks, including those where it succeeded
    return status;
}

int save_run(Trainer& trainer, const char* folder) {
    const std::vector<Sums>& sums = trainer.training->all_sums();
    return guarded(trainer, [&] {
        if (trainer.rank == 0) write_run(folder, *trainer.training, sums);
        return TRAINER_OK;
    });
}

int add_samples(Trainer* trainer, std::int64_t count, const std::int64_t* cells, std::int64_t step,
                sampling::values_view inputs, sampling::values_view targets) {
    if (!trainer || !trainer->is_open) return TRAINER_NOT_OPEN;
    if (trainer->training) return failed(*trainer, TRAINER_IS_FROZEN, "the samples are frozen; add no more");
    if (count < 0) return failed(*trainer, TRAINER_WRONG_CALL, "a negative number of samples");
    if (count > 0 && !(cells && (inputs.floats || inputs.doubles) && (targets.floats || targets.doubles)))
        return failed(*trainer, TRAINER_WRONG_CALL, "cells, inputs or targets are a null pointer");
    const std::int64_t left_out = trainer->shown->add(count, cells, step, inputs, targets);
    trainer->was_shown = trainer->was_shown || count > 0;
    if (left_out == 0) return TRAINER_OK;
    return failed(*trainer, TRAINER_LEFT_OUT,
                  std::to_string(left_out) + " samples are left out: a value is not a finite float");
}

/// Returns TRAINER_OK if the samples are frozen, otherwise the status of a call that needs frozen samples.
int check_frozen(Trainer* trainer) {
    if (!trainer || !trainer->is_open) return TRAINER_NOT_OPEN;
    return trainer->training ? TRAINER_OK : failed(*trainer, TRAINER_WRONG_CALL, "freeze the samples first");
}

}  // namespace

extern "C" {

int NAME(open)(NAME(trainer) * *trainer, MPI_Comm comm) {
    Trainer* one = *trainer = new (std::nothrow) Trainer;
    int has_memory = one != nullptr, all_have = 0;
    if (MPI_Allreduce(&has_memory, &all_have, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS || !all_have) {
        delete one;
        return *trainer = nullptr, TRAINER_NO_MEMORY;
    }
    if (MPI_Comm_dup(comm, &one->comm) != MPI_SUCCESS) return one->comm = MPI_COMM_NULL, TRAINER_NOT_OPEN;
    MPI_Comm_set_errhandler(one->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(one->comm, &one->rank);
    int status = guarded(*one, [&] { return one->shown.reset(new ShownSamples), TRAINER_OK; });
    if (!is_compiled_well())
        status =
            failed(*one, TRAINER_WRONG_FLAGS, "the compiler fuses products and sums; compile with -ffp-contract=off");
    status = agreed(*one, status);
    one->is_open = status == TRAINER_OK;
    return status;
}

int NAME(open_f)(NAME(trainer) * *trainer, MPI_Fint comm) { return NAME(open)(trainer, MPI_Comm_f2c(comm)); }

int NAME(add)(NAME(trainer) * trainer, int64_t count, const int64_t* cell_ids, int64_t step, const float* inputs,
              const float* targets) {
    return add_samples(trainer, count, cell_ids, step, {inputs, nullptr}, {targets, nullptr});
}

int NAME(add_double)(NAME(trainer) * trainer, int64_t count, const int64_t* cell_ids, int64_t step,
                     const double* inputs, const double* targets) {
    return add_samples(trainer, count, cell_ids, step, {nullptr, inputs}, {nullptr, targets});
}

int NAME(freeze)(NAME(trainer) * trainer) {
    if (!trainer || !trainer->is_open) return TRAINER_NOT_OPEN;
    if (trainer->training) return TRAINER_OK;
    return agreed(*trainer, guarded(*trainer, [&] { return freeze(*trainer); }));
}

int NAME(step)(NAME(trainer) * trainer, int64_t num_steps, double* loss) {
    const int status = check_frozen(trainer);
    return status != TRAINER_OK ? status : guarded(*trainer, [&] { return take_steps(*trainer, num_steps, loss); });
}

int NAME(forward)(NAME(trainer) * trainer, int64_t count, const TRAINER_REAL* inputs, TRAINER_REAL* outputs) {
    const int status = check_frozen(trainer);
    if (status == TRAINER_OK && count > 0 && !(inputs && outputs))
        return failed(*trainer, TRAINER_WRONG_CALL, "inputs or outputs are a null pointer");
    if (status == TRAINER_OK) trainer->training->forward(count, inputs, outputs);
    return status;
}

int NAME(write_restart)(NAME(trainer) * trainer, const char* file) {
    if (!trainer || !trainer->is_open) return TRAINER_NOT_OPEN;
    return agreed(*trainer, write_restart(*trainer, file));
}

int NAME(read_restart)(NAME(trainer) * trainer, const char* file) {
    if (!trainer || !trainer->is_open) return TRAINER_NOT_OPEN;
    const bool is_late = trainer->was_shown || trainer->training;
    const int status = is_late ? failed(*trainer, TRAINER_WRONG_CALL, "read the restart before the first samples") : 0;
    if (agreed(*trainer, status) != TRAINER_OK) return TRAINER_WRONG_CALL;
    return read_restart(*trainer, file);
}

int NAME(save_run)(NAME(trainer) * trainer, const char* folder) {
    const int status = check_frozen(trainer);
    return status != TRAINER_OK ? status : agreed(*trainer, save_run(*trainer, folder));
}

int NAME(hash)(NAME(trainer) * trainer, char text[65]) {
    const int status = check_frozen(trainer);
    if (status != TRAINER_OK) return status;
    std::strcpy(text, weights_sha256(parameters_of("", "", trainer->training->exported())).c_str());
    return TRAINER_OK;
}

int NAME(close)(NAME(trainer) * *trainer) {
    Trainer* one = *trainer;
    *trainer = nullptr;
    if (!one) return TRAINER_NOT_OPEN;
    if (one->comm != MPI_COMM_NULL) MPI_Comm_free(&one->comm);
    delete one;
    return TRAINER_OK;
}

const char* NAME(message)(const NAME(trainer) * trainer) {
    return trainer ? trainer->message.c_str() : "the trainer is not open";
}

}  // extern "C"
