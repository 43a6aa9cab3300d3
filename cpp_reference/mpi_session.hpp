#pragma once
#include <mpi.h>

#include <array>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.hpp"

template <typename T>
MPI_Datatype mpi_type() {
    if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
    if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
    if constexpr (std::is_same_v<T, char>) return MPI_CHAR;
    return MPI_INT64_T;
}

/// MPI from MPI_Init_thread to MPI_Finalize. It is passed to functions that need rank and size; there is no global.
class MpiSession {
  public:
    MpiSession(int& argc, char**& argv) {
        // The thread level affects bits: below MULTIPLE, MPICH changes the order of Allreduce after a few calls.
        // Python requests the same level.
        int provided = MPI_THREAD_SINGLE;
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &world_size_);
    }
    ~MpiSession() { MPI_Finalize(); }
    MpiSession(const MpiSession&) = delete;
    MpiSession& operator=(const MpiSession&) = delete;

    int rank() const { return rank_; }
    int world_size() const { return world_size_; }
    bool is_root() const { return rank_ == 0; }
    MPI_Comm comm() const { return MPI_COMM_WORLD; }

    /// Collective. Calls work() on every rank and returns its result. If it throws on any rank, all ranks throw
    /// AgreedError with the message of the lowest of these ranks. work() must not call collectives, as failed ranks
    /// would not enter them.
    template <typename Work>
    auto together(Work&& work) const {
        using Result = std::invoke_result_t<Work>;
        std::optional<std::conditional_t<std::is_void_v<Result>, bool, Result>> result;
        Failure failure;
        try {
            if constexpr (std::is_void_v<Result>) {
                work();
            } else {
                result.emplace(work());
            }
        } catch (const UserError& error) {
            failure = {exit_user_error, error.what()};
        } catch (const std::exception& error) {
            failure = {exit_bug, error.what()};
        }
        throw_together(failure);
        if constexpr (!std::is_void_v<Result>) return std::move(*result);
    }

    /// Collective. Returns, on rank 0, the values of all ranks concatenated in rank order; empty on other ranks.
    /// Lengths may differ.
    template <typename T>
    std::vector<T> gather(const std::vector<T>& local) const {
        const auto size = static_cast<std::size_t>(world_size_);
        const int count = static_cast<int>(local.size());
        std::vector<int> counts(size), starts(size, 0);
        MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, comm());
        std::partial_sum(counts.begin(), counts.end() - 1, starts.begin() + 1);
        std::vector<T> all(is_root() ? static_cast<std::size_t>(starts.back() + counts.back()) : 0);
        MPI_Gatherv(local.data(), count, mpi_type<T>(), all.data(), counts.data(), starts.data(), mpi_type<T>(), 0,
                    comm());
        return all;
    }

  private:
    struct Failure {
        int exit_code = exit_done;
        std::string text;
    };

    void throw_together(const Failure& failure) const {
        const int mine = failure.exit_code == exit_done ? world_size_ : rank_;
        int first = world_size_;
        MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm());
        if (first == world_size_) return;
        std::array<int, 2> code_and_length = {failure.exit_code, static_cast<int>(failure.text.size())};
        MPI_Bcast(code_and_length.data(), 2, MPI_INT, first, comm());
        std::string text = failure.text;
        text.resize(static_cast<std::size_t>(code_and_length[1]));
        MPI_Bcast(text.data(), code_and_length[1], MPI_CHAR, first, comm());
        throw AgreedError(text.substr(0, text.find('\n')), code_and_length[0]);
    }

    int rank_ = 0;
    int world_size_ = 1;
};
