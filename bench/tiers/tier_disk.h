// The disk tier as the daemon uses it: real records in a real extent, submitted and completed on
// one control thread, checksums made and verified, every write indexed and replacing a record.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "bench/support/turn.h"
#include "core/record/record.h"
#include "storage/store/record_store.h"

namespace kvtier::bench {

class TierDisk {
 public:
  // Opens a store in `directory` and fills it with records of this size. Throws std::runtime_error.
  TierDisk(const std::filesystem::path& directory, std::uint64_t record_bytes, std::uint64_t bytes);
  ~TierDisk();
  TierDisk(const TierDisk&) = delete;

  // Bytes per second over at least so many seconds.
  double run(Direction direction, double seconds);

 private:
  void fill();
  void read(std::uint32_t slot);
  void write(std::uint32_t slot, std::uint32_t record);
  void run_tasks();
  void landed(std::uint32_t slot, const Result<void>& result);
  storage::DiskLocation place_of(std::uint32_t record) const noexcept;
  std::uint32_t random_record();

  Namespace ns_;
  NamespaceId ns_id_;
  RecordLayout layout_;
  std::uint32_t records_ = 0;
  std::uint32_t slots_per_segment_ = 0;
  std::unique_ptr<storage::Extent> extent_;

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;

  std::vector<Key> keys_;      // of the record in each place; zero: none yet
  std::vector<bool> writing_;  // places with a write on its way
  std::vector<std::uint32_t> free_;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t random_ = 1;
  std::unique_ptr<storage::RecordStore> store_;
};

}  // namespace kvtier::bench
