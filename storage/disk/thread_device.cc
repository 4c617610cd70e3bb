// The same with a few threads and pread/pwrite, for hosts where io_uring cannot be had.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "client/base/check.h"
#include "storage/disk/block_device.h"

namespace kvtier::storage {
namespace {

constexpr std::size_t kThreads = 8;  // enough to keep one NVMe device busy with megabyte transfers

class ThreadDevice final : public BlockDevice {
 public:
  explicit ThreadDevice(Limits limits) : BlockDevice(limits), files_(limits.files) {
    for (std::size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ThreadDevice() override {
    KVTIER_CHECK(in_flight() == 0);
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* kind() const noexcept override { return "threads"; }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    completed_ready_.notify_one();
  }

 protected:
  Result<void> open_file_impl(FileId file, UniqueFd fd, const std::filesystem::path&) override {
    files_[file.value] = std::move(fd);
    return {};
  }
  void close_file_impl(FileId file) override { files_[file.value].reset(); }
  Result<void> add_buffer_impl(BufferId, std::span<std::byte>) override { return {}; }
  void remove_buffer_impl(BufferId) override {}

  void read_impl(const Transfer& transfer) override { queue(Kind::read, transfer); }
  void write_impl(const Transfer& transfer) override { queue(Kind::write, transfer); }
  void sync_impl(FileId file, std::uint64_t tag) override {
    Transfer transfer;
    transfer.file = file;
    transfer.tag = tag;
    queue(Kind::sync, transfer);
  }

  void submit_impl() override {
    if (queued_.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      for (Job& job : queued_) jobs_.push_back(job);
    }
    queued_.clear();
    work_ready_.notify_all();
  }

  void reap_impl(std::vector<Completion>& out, Wait wait) override {
    submit_impl();
    std::unique_lock lock(mutex_);
    if (wait == Wait::yes) {
      completed_ready_.wait(lock, [this] { return woken_ || !completed_.empty(); });
    }
    woken_ = false;
    std::move(completed_.begin(), completed_.end(), std::back_inserter(out));
    completed_.clear();
  }

 private:
  enum class Kind { read, write, sync };
  struct Job {
    Kind kind;
    Transfer transfer;
    int fd;
  };

  void queue(Kind kind, const Transfer& transfer) {
    queued_.push_back({kind, transfer, files_[transfer.file.value].get()});
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_ready_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      Completion completion{job.transfer.tag, perform(job)};
      lock.lock();
      completed_.push_back(std::move(completion));
      completed_ready_.notify_one();
    }
  }

  static Result<void> perform(const Job& job) {
    if (job.kind == Kind::sync) {
      return ::fdatasync(job.fd) == 0 ? Result<void>{} : failure(job, "sync");
    }
    const bool reading = job.kind == Kind::read;
    std::size_t done = 0;
    while (done < job.transfer.bytes) {
      std::byte* at = job.transfer.memory + done;
      const std::size_t left = job.transfer.bytes - done;
      const auto offset = static_cast<off_t>(job.transfer.offset + done);
      const ssize_t n =
          reading ? ::pread(job.fd, at, left, offset) : ::pwrite(job.fd, at, left, offset);
      if (n < 0 && errno == EINTR) continue;
      if (n == 0) errno = ENODATA;
      if (n <= 0) return failure(job, reading ? "read" : "write");
      done += static_cast<std::size_t>(n);
    }
    return {};
  }

  static Error failure(const Job& job, const char* verb) {
    const int code = errno;
    const Errc kind = code == ENOSPC || code == EDQUOT ? Errc::no_space : Errc::io;
    return errno_error(kind,
                       std::string(verb) + " of segment " +
                           std::to_string(job.transfer.file.value) + " at " +
                           std::to_string(job.transfer.offset),
                       code);
  }

  std::vector<UniqueFd> files_;
  std::vector<Job> queued_;
  std::mutex mutex_;  // guards all below but the threads
  std::condition_variable work_ready_;
  std::condition_variable completed_ready_;
  std::deque<Job> jobs_;
  std::vector<Completion> completed_;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockDevice> make_thread_device(BlockDevice::Limits limits) {
  return std::make_unique<ThreadDevice>(limits);
}

}  // namespace kvtier::storage
