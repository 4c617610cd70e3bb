// A kvtierd of its own as a child process, stopped with the object.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "kvtier/tier.h"

namespace kvtier::bench {

class DaemonChild {
 public:
  struct Options {
    std::string host_capacity, host_extent, disk_capacity;
    std::string more{};  // further sections of its configuration
  };
  // Writes its configuration into `directory`, starts it and returns once it answers. Throws
  // std::runtime_error.
  DaemonChild(const std::string& program, const std::filesystem::path& directory,
              const Options& options);
  ~DaemonChild();
  DaemonChild(const DaemonChild&) = delete;

  std::string socket() const { return (directory_ / "d.sock").string(); }
  // Drops everything that nobody holds from these tiers.
  void drop(TierSet tiers) const;
  // Blocks that the disk tier has taken in since the start.
  std::uint64_t disk_insertions() const;

 private:
  std::filesystem::path directory_;
  pid_t pid_ = -1;
};

}  // namespace kvtier::bench
