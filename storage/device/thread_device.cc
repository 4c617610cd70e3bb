// The same with a few threads and pread/pwrite, for hosts where io_uring cannot be had.
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "storage/device/block_device.h"

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
    files_[file.value] = std::make_shared<const UniqueFd>(std::move(fd));
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
      for (Job& job : queued_)
        jobs_[static_cast<std::size_t>(job.transfer.priority)].push_back(job);
    }
    queued_.clear();
    work_ready_.notify_all();
  }

  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    submit_impl();
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return woken_ || !completed_.empty(); };
    if (wait == Wait::yes && at_most == kForever) {
      completed_ready_.wait(lock, ready);
    } else if (wait == Wait::yes) {
      completed_ready_.wait_for(lock, at_most, ready);
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
    std::shared_ptr<const UniqueFd> file;  // which may be closed meanwhile
  };

  void queue(Kind kind, const Transfer& transfer) {
    queued_.push_back({kind, transfer, files_[transfer.file.value]});
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      auto* jobs = first_jobs();
      while (jobs == nullptr && !stopping_) {
        work_ready_.wait(lock);
        jobs = first_jobs();
      }
      if (stopping_) return;
      const Job job = jobs->front();
      jobs->pop_front();
      lock.unlock();
      Completion completion{job.transfer.tag, {}, 0};
      completion.result = perform(job, completion.code);
      lock.lock();
      completed_.push_back(std::move(completion));
      completed_ready_.notify_one();
    }
  }

  // The jobs that come before all others; null if there are none.
  std::deque<Job>* first_jobs() {
    for (auto& jobs : jobs_) {
      if (!jobs.empty()) return &jobs;
    }
    return nullptr;
  }

  static Result<void> perform(const Job& job, int& code) {
    const int fd = job.file->get();
    if (job.kind == Kind::sync) {
      return ::fdatasync(fd) == 0 ? Result<void>{} : failure(job, "sync", code);
    }
    const bool reading = job.kind == Kind::read;
    std::size_t done = 0;
    while (done < job.transfer.bytes) {
      std::byte* at = job.transfer.memory + done;
      const std::size_t left = job.transfer.bytes - done;
      const auto offset = static_cast<off_t>(job.transfer.offset + done);
      const ssize_t n = reading ? ::pread(fd, at, left, offset) : ::pwrite(fd, at, left, offset);
      if (n < 0 && errno == EINTR) continue;
      if (n == 0) errno = ENODATA;
      if (n <= 0) return failure(job, reading ? "read" : "write", code);
      done += static_cast<std::size_t>(n);
    }
    return {};
  }

  static Error failure(const Job& job, const char* verb, int& code) {
    code = errno;
    const Errc kind = code == ENOSPC || code == EDQUOT ? Errc::no_space : Errc::io;
    return errno_error(kind,
                       std::string(verb) + " of segment " +
                           std::to_string(job.transfer.file.value) + " at " +
                           std::to_string(job.transfer.offset),
                       code);
  }

  std::vector<std::shared_ptr<const UniqueFd>> files_;
  std::vector<Job> queued_;
  std::mutex mutex_;  // guards all below but the threads
  std::condition_variable work_ready_;
  std::condition_variable completed_ready_;
  std::array<std::deque<Job>, 3> jobs_;  // by priority
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
