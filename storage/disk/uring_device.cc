// io_uring: registered files and buffers, O_DIRECT, batched submission. No data is copied and no
// page is pinned on the way; one system call starts and reaps a batch.
#include <liburing.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <cstring>
#include <string>
#include <utility>

#include "client/base/check.h"
#include "client/base/units.h"
#include "storage/disk/block_device.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kWakeTag = ~0ULL;
constexpr std::uint64_t kFixedBufferBytesMax =
    1_GiB;                                 // the kernel's bound for one registered buffer
constexpr std::uint32_t kRetriesMax = 16;  // of one transfer that was interrupted or came short

Error init_error(int code) {
  std::string mend;
  if (code == EPERM) {
    mend =
        " (io_uring is switched off: set kernel.io_uring_disabled=0 with sysctl, or allow its "
        "system"
        " calls in the container's seccomp profile)";
  } else if (code == ENOMEM) {
    mend = " (not enough lockable memory: raise RLIMIT_MEMLOCK, LimitMEMLOCK= in a unit)";
  } else if (code == EMFILE) {
    mend = " (too few file descriptors: raise RLIMIT_NOFILE, LimitNOFILE= in a unit)";
  } else if (code == ENOSYS) {
    mend = " (this kernel has no io_uring: 5.19 or later is needed)";
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

class UringDevice final : public BlockDevice {
 public:
  explicit UringDevice(Limits limits) : BlockDevice(limits) {}

  ~UringDevice() override {
    KVTIER_CHECK(in_flight() == 0);
    if (ready_) ::io_uring_queue_exit(&ring_);
  }

  Result<void> start() {
    event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event_) return errno_error(Errc::io, "eventfd");
    if (const int rc = ::io_uring_queue_init(limits().depth + 2, &ring_, 0); rc < 0) {
      return init_error(-rc);
    }
    ready_ = true;
    if (const int rc = ::io_uring_register_files_sparse(&ring_, limits().files); rc < 0) {
      return init_error(-rc);
    }
    if (const int rc = ::io_uring_register_buffers_sparse(&ring_, limits().buffers); rc < 0) {
      return init_error(-rc);
    }
    fixed_.resize(limits().buffers, false);
    operations_.reserve(limits().depth + 2);
    arm_wake();
    submit_impl();
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

  // Memory that cannot be registered is used all the same, its pages pinned for each transfer.
  Result<void> add_buffer_impl(BufferId buffer, std::span<std::byte> memory) override {
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
    return {};
  }

  void remove_buffer_impl(BufferId buffer) override {
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

  void reap_impl(std::vector<Completion>& out, Wait wait) override {
    enter(wait == Wait::yes ? 1 : 0);
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
    const bool fixed = operation.kind != Kind::sync && fixed_[transfer.buffer.value];
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
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    while (entry == nullptr) {
      enter(0);
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

  void complete(std::uint64_t at, int result, std::vector<Completion>& out) {
    Operation& operation = operations_[at];
    const Transfer& transfer = operation.transfer;
    const bool is_sync = operation.kind == Kind::sync;
    const std::uint32_t left = is_sync ? 0 : transfer.bytes - operation.done;
    const bool again = result == -EINTR || result == -EAGAIN;
    const bool short_part = result > 0 && static_cast<std::uint32_t>(result) < left;
    if ((again || short_part) && operation.retries < kRetriesMax) {
      ++operation.retries;
      if (short_part) operation.done += static_cast<std::uint32_t>(result);
      prepare(at);
      return;
    }
    Completion completion{transfer.tag, {}};
    const char* const verb = is_sync ? "sync" : operation.kind == Kind::read ? "read" : "write";
    if (result < 0) {
      const Errc kind = result == -ENOSPC || result == -EDQUOT ? Errc::no_space : Errc::io;
      completion.result = make_error(
          kind, std::string(verb) + " of segment " + std::to_string(transfer.file.value) + " at " +
                    std::to_string(transfer.offset) + ": " + cause_of(-result));
    } else if (static_cast<std::uint32_t>(result) < left) {
      completion.result = make_error(
          Errc::io, std::string(verb) + " of segment " + std::to_string(transfer.file.value) +
                        " at " + std::to_string(transfer.offset) + ": ended early");
    }
    free_.push_back(at);
    out.push_back(std::move(completion));
  }

  io_uring ring_{};
  bool ready_ = false;
  UniqueFd event_;
  std::vector<bool> fixed_;  // by buffer: registered with the ring
  std::vector<Operation> operations_;
  std::vector<std::size_t> free_;
};

}  // namespace

Result<std::unique_ptr<BlockDevice>> make_uring_device(BlockDevice::Limits limits) {
  auto device = std::make_unique<UringDevice>(limits);
  if (const auto started = device->start(); !started) return started.error();
  return std::unique_ptr<BlockDevice>(std::move(device));
}

}  // namespace kvtier::storage
