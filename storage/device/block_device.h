// Asynchronous file I/O for the disk tier: whole pages between files and memory that were both made
// known beforehand. Implementations: io_uring, and a few threads where io_uring cannot be had;
// wrappers for tests (tests/storage/faults/).
//
// One thread owns a device and calls everything here; only wake() may be called from any thread.
// The public functions check their arguments and count; the virtual ones do the work.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "core/base/strong.h"
#include "kvtier/result.h"

namespace kvtier::storage {

using FileId = Strong<struct FileTag, std::uint32_t>;      // below Limits::files
using BufferId = Strong<struct BufferTag, std::uint32_t>;  // below Limits::buffers

class BlockDevice {
 public:
  struct Limits {
    std::uint32_t depth = 64;  // transfers in flight that need no further memory
    std::uint32_t files = 1024;
    std::uint32_t buffers = 1024;
  };

  // Who waits for a transfer: its place in the device's queue where the kernel knows priorities.
  enum class Priority : std::uint8_t { read, write, scrub };

  // Between `bytes` of `file` at `offset` and memory inside `buffer`; all multiples of 4 KiB.
  struct Transfer {
    FileId file;
    std::uint64_t offset = 0;
    BufferId buffer;
    std::byte* memory = nullptr;  // stays valid until the completion
    std::uint32_t bytes = 0;
    std::uint64_t tag = 0;  // comes back in the completion
    Priority priority = Priority::read;
    bool as_mapped = false;  // the pages that are mapped now, whether or not others are pinned
  };
  struct Completion {
    std::uint64_t tag = 0;
    Result<void> result;  // io, no_space: with the kernel's reason. Never a part of the bytes
    int code = 0;         // the errno behind an error
  };
  struct Counters {
    std::uint64_t reads = 0, writes = 0, syncs = 0, bytes_read = 0, bytes_written = 0, failures = 0;
  };
  enum class Wait { no, yes };

  explicit BlockDevice(Limits limits) : limits_(limits) {}
  virtual ~BlockDevice() = default;
  BlockDevice(const BlockDevice&) = delete;
  BlockDevice& operator=(const BlockDevice&) = delete;

  const Limits& limits() const noexcept { return limits_; }
  virtual const char* kind() const noexcept = 0;

  // Opens an existing file, past the page cache where the file system can. Errors: io, not_found,
  // no_space (of descriptors).
  Result<void> open_file(FileId file, const std::filesystem::path& path);
  // What is in flight goes on.
  void close_file(FileId file);
  bool is_open(FileId file) const noexcept { return files_.contains(file.value); }

  // Makes memory known; it stays mapped until remove_buffer(). Errors: io.
  Result<void> add_buffer(BufferId buffer, std::span<std::byte> memory);
  // Has the kernel hold the memory's pages for all transfers to come, instead of for each one. They
  // should be there (populate_in_pieces()). Without effect where the kernel refuses.
  void pin_buffer(BufferId buffer);
  // Ends that: each transfer to come holds the pages that are mapped then. Those in flight keep
  // what they hold.
  void unpin_buffer(BufferId buffer);
  // No transfer on it may be in flight.
  void remove_buffer(BufferId buffer);

  // Queue a transfer, or an fdatasync that covers the writes which completed before it. Started by
  // submit().
  void read(const Transfer& transfer);
  void write(const Transfer& transfer);
  void sync(FileId file, std::uint64_t tag);

  void submit() { submit_impl(); }
  // Submits, then appends all that has completed; with Wait::yes it first waits for a completion,
  // wake() or the end of `at_most`.
  using Duration = std::chrono::milliseconds;
  static constexpr Duration kForever = Duration::max();
  void reap(std::vector<Completion>& out, Wait wait, Duration at_most = kForever);
  // Ends the current or the next wait. Any thread.
  virtual void wake() = 0;

  std::uint64_t in_flight() const noexcept { return in_flight_; }
  const Counters& counters() const noexcept { return counters_; }

 protected:
  virtual Result<void> open_file_impl(FileId file, UniqueFd fd,
                                      const std::filesystem::path& path) = 0;
  virtual void close_file_impl(FileId file) = 0;
  virtual Result<void> add_buffer_impl(BufferId buffer, std::span<std::byte> memory) = 0;
  virtual void pin_buffer_impl(BufferId, std::span<std::byte>) {}
  virtual void unpin_buffer_impl(BufferId) {}
  virtual void remove_buffer_impl(BufferId buffer) = 0;
  virtual void read_impl(const Transfer& transfer) = 0;
  virtual void write_impl(const Transfer& transfer) = 0;
  virtual void sync_impl(FileId file, std::uint64_t tag) = 0;
  virtual void submit_impl() = 0;
  virtual void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) = 0;

 private:
  void check(const Transfer& transfer) const;

  Limits limits_;
  std::map<std::uint32_t, std::filesystem::path> files_;
  std::map<std::uint32_t, std::span<std::byte>> buffers_;
  std::uint64_t in_flight_ = 0;
  Counters counters_;
  bool buffered_io_reported_ = false;
};

struct DeviceOptions {
  bool sqpoll = false;         // a kernel thread takes submissions: no system call, one busy core
  bool force_threads = false;  // as if io_uring were refused
};

// Errors: io, saying which setting of the host mends it. `sqpoll` is given up with a line in the
// log where the kernel refuses it.
Result<std::unique_ptr<BlockDevice>> make_uring_device(BlockDevice::Limits limits,
                                                       DeviceOptions options = {});
std::unique_ptr<BlockDevice> make_thread_device(BlockDevice::Limits limits);
// The first, or the second with a line in the log that says why and how to get the first.
std::unique_ptr<BlockDevice> make_block_device(BlockDevice::Limits limits,
                                               DeviceOptions options = {});

}  // namespace kvtier::storage
