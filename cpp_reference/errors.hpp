#pragma once
#include <stdexcept>
#include <string>

/// The user's input is wrong. The message is one line: the problem, the value, its location, and what is allowed.
class UserError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// An error that all ranks throw together, so that each can exit normally, without MPI_Abort.
class AgreedError : public std::runtime_error {
  public:
    AgreedError(const std::string& text, int exit_code) : std::runtime_error(text), exit_code_(exit_code) {}
    int exit_code() const { return exit_code_; }

  private:
    int exit_code_;
};

enum ExitCode { exit_done = 0, exit_bug = 1, exit_user_error = 2 };
