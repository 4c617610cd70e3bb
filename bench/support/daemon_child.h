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
    std::string host_capacity, host_extent;
    std::string disk_capacity;          // empty: no disk tier
    std::string device_capacity = "0";  // of the first GPU's memory
    std::string policy{};               // which block goes; empty: as kvtierd has it
  };
  // Writes its configuration into `directory`, starts it and returns once it answers. Throws
  // std::runtime_error.
  DaemonChild(const std::string& program, const std::filesystem::path& directory,
              const Options& options);
  ~DaemonChild();
  DaemonChild(const DaemonChild&) = delete;

  std::string socket() const { return (directory_ / "d.sock").string(); }
  // Blocks that the disk tier has taken in since the start.
  std::uint64_t disk_insertions() const;
  // Drops what nobody holds from these tiers.
  void drop(TierSet tiers) const;

 private:
  std::filesystem::path directory_;
  pid_t pid_ = -1;
};

}  // namespace kvtier::bench
