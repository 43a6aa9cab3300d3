#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// A NetCDF file, closed by the destructor. Every failure is a UserError with the names of the file and the variable.
class NetcdfFile {
  public:
    static NetcdfFile open(const std::string& path);
    static NetcdfFile create(const std::string& path);
    ~NetcdfFile();
    NetcdfFile(NetcdfFile&& other) noexcept : path_(std::move(other.path_)), id_(std::exchange(other.id_, -1)) {}
    NetcdfFile(const NetcdfFile&) = delete;
    NetcdfFile& operator=(const NetcdfFile&) = delete;
    NetcdfFile& operator=(NetcdfFile&&) = delete;

    const std::string& path() const { return path_; }
    bool has(const std::string& variable) const;
    std::vector<std::string> variable_names() const;
    std::vector<std::size_t> shape(const std::string& variable) const;
    std::vector<float> read_float(const std::string& variable) const;
    std::vector<double> read_double(const std::string& variable) const;
    std::vector<std::int64_t> read_int64(const std::string& variable) const;
    /// Returns a block of the variable: `count` values along each dimension, from `start`.
    std::vector<std::int64_t> read_int64(const std::string& variable, const std::vector<std::size_t>& start,
                                         const std::vector<std::size_t>& count) const;

    /// Define all variables before writing any. Dimensions of the same name must have the same length.
    void define(const std::string& variable, int type, const std::vector<std::pair<std::string, std::size_t>>& dims);
    void set_attribute(const std::string& name, const std::string& text);
    void set_attribute(const std::string& name, std::int64_t number);
    void end_definitions();
    void write(const std::string& variable, const std::vector<double>& values);
    void write(const std::string& variable, const std::vector<std::int64_t>& values);
    /// Closes the file and throws on failure, e.g. on a full disk, which the destructor would ignore.
    void close();

  private:
    NetcdfFile(std::string path, int id) : path_(std::move(path)), id_(id) {}
    int variable_id(const std::string& variable) const;
    std::size_t length(const std::string& variable) const;
    void check(int status, const std::string& what) const;

    std::string path_;
    int id_ = -1;
};

/// Throws UserError if no file can be written at this path; does not change an existing file.
void check_writable(const std::string& path);
