// What check-system asks of the host: files below a root, and questions that only the kernel
// answers. Tests give another root and other answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::ctl {

struct DiskFacts {
  std::string file_system;  // "ext4", "xfs", "tmpfs", ...
  std::uint64_t free_bytes = 0;
  std::optional<int>
      direct_io_error;  // errno of a write with O_DIRECT; 0: it works; none: not tried
  std::string device;   // "259:3", as in /sys/dev/block; empty: none of its own
};

struct GpuFacts {
  std::string name;
  bool shares_memory = false;
};

struct SocketFacts {
  bool exists = false;
  std::uint32_t mode = 0;
  std::string group;      // of the socket file
  int connect_error = 0;  // errno
};

class Host {
 public:
  explicit Host(std::filesystem::path root = "/");

  // The text of a file; none where it cannot be read. `path` begins with '/'.
  std::optional<std::string> read(const std::string& path) const;
  bool exists(const std::string& path) const;
  // The number in a file, or after `label` in it ("MemAvailable:"), without its unit.
  std::optional<std::uint64_t> number(const std::string& path, const std::string& label = "") const;
  // The names in a directory that begin so.
  std::vector<std::string> names(const std::string& directory, const std::string& begin) const;

  // errno of io_uring_setup(2), or 0; what a seccomp filter says comes out here.
  std::function<int()> io_uring_error;
  // errno of memfd_create(2) and its first page, or 0.
  std::function<int()> memfd_error;
  std::function<Result<std::vector<GpuFacts>>()> gpus;
  // Errors: not_found, io.
  std::function<Result<DiskFacts>(const std::string& directory)> disk;
  std::function<SocketFacts(const std::string& path)> socket;
  std::function<std::string()> user;  // the caller's name
  // Whether the caller may read and write a device file.
  std::function<bool(const std::string& path)> may_use;

 private:
  std::filesystem::path root_;
};

}  // namespace kvtier::ctl
