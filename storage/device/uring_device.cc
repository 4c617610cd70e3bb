// io_uring: registered files and buffers, O_DIRECT, batched submission. No data is copied and, but
// for transfers as_mapped, no page is pinned on the way; one system call starts and reaps a batch.
#include <liburing.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"
#include "storage/device/block_device.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kWakeTag = ~0ULL;
constexpr std::uint64_t kFixedBufferBytesMax =
    1_GiB;                              // the kernel's bound for one registered buffer
constexpr unsigned kSqpollIdleMs = 50;  // then the kernel's thread sleeps until the next submission
constexpr std::uint32_t kRetriesMax = 16;  // of one transfer that was interrupted or came short

// Why io_uring_setup() is not permitted: the sysctl says so, or else a seccomp filter does.
std::string refusal_mend() {
  std::ifstream file("/proc/sys/kernel/io_uring_disabled");
  int disabled = 0;
  if (file >> disabled && disabled != 0) {
    return " (kernel.io_uring_disabled is " + std::to_string(disabled) +
           ": set it to 0 with sysctl" +
           (disabled == 1 ? ", or join the group of kernel.io_uring_group)" : ")");
  }
  return " (a seccomp filter forbids it: allow io_uring_setup, io_uring_enter and "
         "io_uring_register in the container's profile)";
}

Error init_error(int code) {
  std::string mend;
  if (code == EPERM || code == EACCES) {
    mend = refusal_mend();
  } else if (code == ENOMEM) {
    mend = " (not enough lockable memory: raise RLIMIT_MEMLOCK, LimitMEMLOCK= in a unit)";
  } else if (code == EMFILE) {
    mend = " (too few file descriptors: raise RLIMIT_NOFILE, LimitNOFILE= in a unit)";
  } else if (code == ENOSYS) {
    mend =
        " (this kernel has no io_uring, or a sandbox hides it: run 5.19 or later, outside the "
        "sandbox)";
  } else if (code == EINVAL) {
    mend = " (this kernel's io_uring is too old: 5.19 or later is needed)";
  }
  return errno_error(Errc::io, "io_uring cannot be set up" + mend, code);
}

// The cause of a failed transfer, in words that help.
std::string cause_of(int code) {
  switch (code) {
    case EIO:
      return "the device failed";
    case ENOSPC:
      return "no space left";
    case EDQUOT:
      return "over quota";
    case EROFS:
      return "the file system is read-only";
    case EFBIG:
      return "past the largest file size (RLIMIT_FSIZE)";
    case EINVAL:
      return "an offset or size that the device refuses";
    case EFAULT:
      return "memory that is not mapped";
    case EBADF:
      return "a file that is not open";
    case EOPNOTSUPP:
      return "an operation that the file system refuses";
    case ECANCELED:
      return "cancelled";
    default:
      return std::strerror(code);
  }
}

// The kernel's I/O priority word: best-effort class, level 0 (first) to 7.
constexpr std::uint16_t ioprio_of(BlockDevice::Priority priority) noexcept {
  constexpr std::uint16_t kBestEffort = 2 << 13;
  constexpr std::uint16_t kLevels[] = {0, 4, 7};
  return kBestEffort | kLevels[static_cast<std::size_t>(priority)];
}

class UringDevice final : public BlockDevice {
 public:
  explicit UringDevice(Limits limits) : BlockDevice(limits) {}

  ~UringDevice() override {
    KVTIER_CHECK(in_flight() == 0);
    if (ready_) ::io_uring_queue_exit(&ring_);
  }

  Result<void> start(bool sqpoll) {
    event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event_) return errno_error(Errc::io, "eventfd");
    int rc = init_ring(sqpoll);
    if (rc < 0 && sqpoll) {
      spdlog::warn("io_uring without SQPOLL, which this kernel refuses: {}", std::strerror(-rc));
      rc = init_ring(false);
    }
    if (rc < 0) return init_error(-rc);
    ready_ = true;
    rc = ::io_uring_register_files_sparse(&ring_, limits().files);
    if (rc < 0) return init_error(-rc);
    rc = ::io_uring_register_buffers_sparse(&ring_, limits().buffers);
    if (rc < 0) return init_error(-rc);
    fixed_.resize(limits().buffers, false);
    operations_.reserve(limits().depth + 2);
    arm_wake();
    // A filter may let the ring be made and not used. With SQPOLL to submit may be no call at all.
    if (rc = ::io_uring_submit(&ring_); rc < 0) return init_error(-rc);
    if (rc = ::io_uring_get_events(&ring_); rc < 0) return init_error(-rc);
    return {};
  }

  const char* kind() const noexcept override { return "io_uring"; }

  void wake() override {
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
  }

 protected:
  // The ring holds the file from here on; the descriptor itself is closed.
  Result<void> open_file_impl(FileId file, UniqueFd fd,
                              const std::filesystem::path& path) override {
    const int number = fd.get();
    const int rc = ::io_uring_register_files_update(&ring_, file.value, &number, 1);
    if (rc == 1) return {};
    return errno_error(Errc::io, "cannot register " + path.string() + " with io_uring", -rc);
  }

  void close_file_impl(FileId file) override {
    const int none = -1;
    (void)::io_uring_register_files_update(&ring_, file.value, &none, 1);
  }

  Result<void> add_buffer_impl(BufferId buffer, std::span<std::byte>) override {
    fixed_[buffer.value] = false;
    return {};
  }

  // Memory that cannot be registered is used all the same, its pages held for each transfer.
  void pin_buffer_impl(BufferId buffer, std::span<std::byte> memory) override {
    const iovec piece{memory.data(), memory.size()};
    int rc = -EFBIG;
    if (memory.size() <= kFixedBufferBytesMax) {
      const __u64 no_tag = 0;
      rc = ::io_uring_register_buffers_update_tag(&ring_, buffer.value, &piece, &no_tag, 1);
    }
    fixed_[buffer.value] = rc == 1;
    if (rc != 1) {
      spdlog::warn(
          "{} bytes of memory not registered with io_uring, disk I/O on it is slower: {}{}",
          memory.size(), std::strerror(-rc),
          rc == -ENOMEM ? " (raise RLIMIT_MEMLOCK, LimitMEMLOCK= in a unit)" : "");
    }
  }

  void remove_buffer_impl(BufferId buffer) override { unpin_buffer_impl(buffer); }

  // The kernel keeps the pages for as long as transfers in flight use them.
  void unpin_buffer_impl(BufferId buffer) override {
    if (!fixed_[buffer.value]) return;
    fixed_[buffer.value] = false;
    const iovec none{};
    const __u64 no_tag = 0;
    (void)::io_uring_register_buffers_update_tag(&ring_, buffer.value, &none, &no_tag, 1);
  }

  void read_impl(const Transfer& transfer) override { start(Operation{Kind::read, transfer}); }
  void write_impl(const Transfer& transfer) override { start(Operation{Kind::write, transfer}); }
  void sync_impl(FileId file, std::uint64_t tag) override {
    Transfer transfer;
    transfer.file = file;
    transfer.tag = tag;
    start(Operation{Kind::sync, transfer});
  }

  void submit_impl() override { enter(0); }

  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    if (wait == Wait::yes && at_most != kForever) {
      enter_for(at_most);
    } else {
      enter(wait == Wait::yes ? 1 : 0);
    }
    io_uring_cqe* entry = nullptr;
    while (::io_uring_peek_cqe(&ring_, &entry) == 0) {
      const std::uint64_t tag = entry->user_data;
      const int result = entry->res;
      ::io_uring_cqe_seen(&ring_, entry);
      if (tag == kWakeTag) {
        std::uint64_t count = 0;
        (void)!::read(event_.get(), &count, sizeof count);
        arm_wake();
      } else {
        complete(tag, result, out);
      }
    }
    enter(0);
  }

 private:
  enum class Kind { read, write, sync };
  struct Operation {
    Kind kind = Kind::read;
    Transfer transfer;
    std::uint32_t done = 0;
    std::uint32_t retries = 0;
  };

  int init_ring(bool sqpoll) {
    io_uring_params params{};
    if (sqpoll) params.flags |= IORING_SETUP_SQPOLL;
    params.sq_thread_idle = kSqpollIdleMs;
    sqpoll_ = sqpoll;
    return ::io_uring_queue_init_params(limits().depth + 2, &ring_, &params);
  }

  void start(const Operation& operation) {
    std::size_t at = operations_.size();
    if (free_.empty()) {
      operations_.push_back(operation);
    } else {
      at = free_.back();
      free_.pop_back();
      operations_[at] = operation;
    }
    prepare(at);
  }

  void prepare(std::size_t at) {
    const Operation& operation = operations_[at];
    const Transfer& transfer = operation.transfer;
    const int file = static_cast<int>(transfer.file.value);
    const int buffer = static_cast<int>(transfer.buffer.value);
    std::byte* memory = transfer.memory + operation.done;
    const unsigned bytes = transfer.bytes - operation.done;
    const std::uint64_t offset = transfer.offset + operation.done;
    const bool fixed =
        operation.kind != Kind::sync && !transfer.as_mapped && fixed_[transfer.buffer.value];
    io_uring_sqe* entry = next_entry();
    if (operation.kind == Kind::sync) {
      ::io_uring_prep_fsync(entry, file, IORING_FSYNC_DATASYNC);
    } else if (operation.kind == Kind::read) {
      fixed ? ::io_uring_prep_read_fixed(entry, file, memory, bytes, offset, buffer)
            : ::io_uring_prep_read(entry, file, memory, bytes, offset);
    } else {
      fixed ? ::io_uring_prep_write_fixed(entry, file, memory, bytes, offset, buffer)
            : ::io_uring_prep_write(entry, file, memory, bytes, offset);
    }
    entry->flags |= IOSQE_FIXED_FILE;
    entry->user_data = at;
    if (prioritised_ && operation.kind != Kind::sync) entry->ioprio = ioprio_of(transfer.priority);
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    while (entry == nullptr) {
      enter(0);
      if (sqpoll_) (void)::io_uring_sqring_wait(&ring_);
      entry = ::io_uring_get_sqe(&ring_);
    }
    return entry;
  }

  void arm_wake() {
    io_uring_sqe* entry = next_entry();
    ::io_uring_prep_poll_add(entry, event_.get(), POLLIN);
    entry->user_data = kWakeTag;
  }

  // Interrupted, or the kernel is short of memory or of room for completions: what was not taken
  // stays in the queue for the next call.
  void enter(unsigned wait_for) {
    const int rc =
        wait_for > 0 ? ::io_uring_submit_and_wait(&ring_, wait_for) : ::io_uring_submit(&ring_);
    KVTIER_CHECK(rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM);
  }

  void enter_for(Duration at_most) {
    constexpr long long kMsPerS = 1000, kNsPerMs = 1'000'000;
    __kernel_timespec time{at_most.count() / kMsPerS, at_most.count() % kMsPerS * kNsPerMs};
    io_uring_cqe* ignored = nullptr;
    const int rc = ::io_uring_submit_and_wait_timeout(&ring_, &ignored, 1, &time, nullptr);
    KVTIER_CHECK(rc >= 0 || rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY ||
                 rc == -ENOMEM);
  }

  // Whether a refused transfer may have been refused for its priority, which no transfer then has
  // any more. Once one was accepted, a refusal means something else.
  bool give_up_priority(int result, bool is_sync) {
    if (is_sync) return false;
    if (result != -EINVAL) priority_proven_ = priority_proven_ || result >= 0;
    if (result != -EINVAL || priority_proven_) return false;
    if (prioritised_) {
      spdlog::info("disk I/O without priorities, which this kernel or file system refuses");
      prioritised_ = false;
    }
    return true;
  }

  void complete(std::uint64_t at, int result, std::vector<Completion>& out) {
    Operation& operation = operations_[at];
    const Transfer& transfer = operation.transfer;
    const bool is_sync = operation.kind == Kind::sync;
    const std::uint32_t left = is_sync ? 0 : transfer.bytes - operation.done;
    const bool again = result == -EINTR || result == -EAGAIN || give_up_priority(result, is_sync);
    const bool short_part = result > 0 && static_cast<std::uint32_t>(result) < left;
    if ((again || short_part) && operation.retries < kRetriesMax) {
      ++operation.retries;
      if (short_part) operation.done += static_cast<std::uint32_t>(result);
      prepare(at);
      return;
    }
    Completion completion{transfer.tag, {}, result < 0 ? -result : 0};
    const char* const verb = is_sync ? "sync" : operation.kind == Kind::read ? "read" : "write";
    if (result < 0) {
      const Errc kind = result == -ENOSPC || result == -EDQUOT ? Errc::no_space : Errc::io;
      completion.result = make_error(
          kind, std::string(verb) + " of segment " + std::to_string(transfer.file.value) + " at " +
                    std::to_string(transfer.offset) + ": " + cause_of(-result));
    } else if (static_cast<std::uint32_t>(result) < left) {
      completion.code = ENODATA;
      completion.result = make_error(
          Errc::io, std::string(verb) + " of segment " + std::to_string(transfer.file.value) +
                        " at " + std::to_string(transfer.offset) + ": ended early");
    }
    free_.push_back(at);
    out.push_back(std::move(completion));
  }

  io_uring ring_{};
  bool ready_ = false;
  bool sqpoll_ = false;
  bool prioritised_ = true;
  bool priority_proven_ = false;
  UniqueFd event_;
  std::vector<bool> fixed_;  // by buffer: registered with the ring
  std::vector<Operation> operations_;
  std::vector<std::size_t> free_;
};

}  // namespace

Result<std::unique_ptr<BlockDevice>> make_uring_device(BlockDevice::Limits limits,
                                                       DeviceOptions options) {
  auto device = std::make_unique<UringDevice>(limits);
  if (const auto started = device->start(options.sqpoll); !started) return started.error();
  return std::unique_ptr<BlockDevice>(std::move(device));
}

}  // namespace kvtier::storage
