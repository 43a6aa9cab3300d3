// Messages between the first ranks of several nodes, by functions of the MPI library of this process. Python passes the
// addresses of the functions, so that the kernel is compiled without MPI and works with any MPI library.
//
//   N nodes
#pragma once

#include <sched.h>

#include <cstdint>
#include <ctime>

#include "shared_sum.hpp"

/// MPI's functions, and the communicator of the N first ranks, where a rank's number is that of its node; the same
/// fields in the same order as `KernelNodeMessages` in structs.py.
struct NodeMessages {
    void (*send)();                        // MPI_Isend
    void (*receive)();                     // MPI_Irecv
    void (*test_all)();                    // MPI_Testall
    void* statuses;                        // [2 (N - 1)] of MPI_Status
    void* requests;                        // [2 (N - 1)] of MPI_Request
    std::int64_t communicator, byte_type;  // handles, as numbers
    std::int64_t handle_bytes;  // size of a handle: an int in MPICH's ABI, a pointer in those of Open MPI and MPI 5
    std::int64_t num_nodes, node;
    std::int64_t error;  // the result of a function that failed, or MPI_SUCCESS, which is 0
};

/// Converts a number to a handle of either kind.
template <class Handle>
Handle handle_of(std::int64_t number);
template <>
inline int handle_of<int>(std::int64_t number) {
    return static_cast<int>(number);
}
template <>
inline void* handle_of<void*>(std::int64_t number) {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(number));
}

/// Pauses between two polls, longer with their number: a message arrives within microseconds from a node that computes,
/// after seconds from one that waits for files or for its scheduler.
inline void pause_before_look(std::int64_t look, bool shares_cores) {
    constexpr std::int64_t busy_looks = 2000, yielding_looks = 20000;  // about 0.2 ms and some ms
    constexpr timespec asleep{0, 50000};
    if (look < busy_looks && !shares_cores) {
        relax();
    } else if (look < yielding_looks) {
        sched_yield();
    } else {
        nanosleep(&asleep, nullptr);
    }
}

/// Messages that have been started and not completed. After an error no function does anything, and `wait` returns
/// false.
template <class Handle>
class Outstanding {
  public:
    explicit Outstanding(NodeMessages& messages) : messages_(messages) {}

    /// Starts to send `num_bytes` bytes to the first rank of node `to`; they must not change before `wait` returns.
    void send(const void* bytes, std::int64_t num_bytes, std::int64_t to) {
        using Send = int (*)(const void*, int, Handle, int, int, Handle, Handle*);
        if (messages_.error) return;
        messages_.error = reinterpret_cast<Send>(messages_.send)(
            bytes, static_cast<int>(num_bytes), byte_type(), static_cast<int>(to), tag, communicator(), next_request());
    }

    /// Starts to receive `num_bytes` bytes from the first rank of node `from`; they are complete when `wait` returns.
    void receive(void* bytes, std::int64_t num_bytes, std::int64_t from) {
        using Receive = int (*)(void*, int, Handle, int, int, Handle, Handle*);
        if (messages_.error) return;
        messages_.error =
            reinterpret_cast<Receive>(messages_.receive)(bytes, static_cast<int>(num_bytes), byte_type(),
                                                         static_cast<int>(from), tag, communicator(), next_request());
    }

    /// Waits until all messages are complete and returns true, or returns false after an error.
    bool wait(bool shares_cores) {
        using TestAll = int (*)(int, Handle*, int*, void*);
        const auto test_all = reinterpret_cast<TestAll>(messages_.test_all);
        int have_ended = 0;
        for (std::int64_t look = 0; !messages_.error; ++look) {
            messages_.error =
                test_all(num_started_, static_cast<Handle*>(messages_.requests), &have_ended, messages_.statuses);
            if (have_ended) break;
            pause_before_look(look, shares_cores);
        }
        num_started_ = 0;
        return messages_.error == 0;
    }

  private:
    static constexpr int tag = 0;  // this communicator has no other messages

    Handle byte_type() const { return handle_of<Handle>(messages_.byte_type); }
    Handle communicator() const { return handle_of<Handle>(messages_.communicator); }
    Handle* next_request() { return static_cast<Handle*>(messages_.requests) + num_started_++; }

    NodeMessages& messages_;
    int num_started_ = 0;
};
