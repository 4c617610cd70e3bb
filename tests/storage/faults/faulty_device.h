// A BlockDevice around a real one that goes wrong when it is told to, for tests.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "storage/device/block_device.h"

namespace kvtier::storage {

// What goes wrong, and what went by. Transfers are counted from 1, reads and writes apart. Any
// thread.
class Faults {
 public:
  struct Fault {
    int error = 0;  // the transfer fails with this errno, and does nothing
    std::optional<std::uint32_t> only_bytes =
        {};                     // a write stops after so many, a read leaves the rest stale;
                                // a multiple of 4 KiB, and reported as a success
    std::int64_t moved_by = 0;  // bytes that the transfer lands away from its offset
    std::optional<std::uint64_t> flipped_bit = {};  // of a read's memory, once it has completed
  };

  void fail_read(std::uint64_t nth, int error) { on_read(nth, {.error = error}); }
  void fail_write(std::uint64_t nth, int error) { on_write(nth, {.error = error}); }
  void on_read(std::uint64_t nth, Fault fault);
  void on_write(std::uint64_t nth, Fault fault);

  // From now on every transfer and sync fails with `error`, or those of one kind alone; until
  // mend().
  void break_down(int error);
  void break_writes(int error);
  void break_syncs(int error);
  void mend();

  // From now on completions are kept back; release() lets all of them go and ends it.
  void hold();
  void release();
  // Blocks until so many transfers have been started since the device was made.
  void wait_for_started(std::uint64_t transfers);
  // Blocks until so many buffers have been pinned since the device was made.
  void wait_for_pinned(std::uint64_t buffers);
  struct Started {
    std::uint64_t reads = 0, writes = 0;
  };
  Started started();

 private:
  friend class FaultyDevice;
  std::optional<Fault> next(bool is_read);
  bool holding();
  int broken_sync();
  void note_pinned();

  std::mutex mutex_;
  std::condition_variable started_;
  std::map<std::uint64_t, Fault> reads_faults_, writes_faults_;
  std::uint64_t reads_ = 0, writes_ = 0, pinned_ = 0;
  bool holding_ = false;
  int broken_reads_ = 0, broken_writes_ = 0, broken_syncs_ = 0;
  BlockDevice* device_ = nullptr;
};

// `faults` outlives the device.
std::unique_ptr<BlockDevice> make_faulty_device(std::unique_ptr<BlockDevice> inner, Faults& faults);

}  // namespace kvtier::storage
