// The index's files on a file system that fails when it is told to, or that loses what was not
// synced, as a power cut does, for tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>

namespace rocksdb {
class Env;
}

namespace kvtier::storage {

// Outlives the stores that it is the RecordStoreOptions::index_env of. Any thread.
class IndexFiles {
 public:
  IndexFiles();
  ~IndexFiles();
  rocksdb::Env* env() const noexcept { return env_.get(); }

  // From now on nothing is written, synced, made, renamed or removed, and every attempt ends with
  // this errno; until mend(). What is there can be read.
  void break_down(int error) noexcept { error_ = error; }
  // The same of syncs alone: what such a sync covered no later one makes durable.
  void break_syncs(int error) noexcept { sync_error_ = error; }
  void mend() noexcept { error_ = sync_error_ = 0; }
  // How often something failed for it.
  std::uint64_t failures() const noexcept { return failures_; }

  // While the index is closed: each file ends somewhere between its last sync and its end, at
  // either of them more often than not. Names are as they were left.
  void cut(std::mt19937& random);

 private:
  friend class BreakableFiles;
  friend class BreakableFile;
  struct File {
    std::uint64_t bytes = 0, synced_bytes = 0;
    bool doubtful = false;  // a sync failed
  };
  int broken() noexcept;

  std::atomic<int> error_ = 0, sync_error_ = 0;
  std::atomic<std::uint64_t> failures_ = 0;
  std::mutex mutex_;
  std::map<std::string, File> files_;  // that were written to, by path
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace kvtier::storage
