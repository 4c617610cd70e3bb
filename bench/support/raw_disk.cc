#include "bench/support/raw_disk.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bench/support/records.h"

namespace kvtier::bench {
namespace {

constexpr std::uint64_t kBufferBytes = 4U << 20;  // the largest transfer
constexpr std::uint64_t kMemoryBytes = kReadDepth * kBufferBytes;

[[noreturn]] void fail(const std::string& what, int code) {
  throw std::runtime_error("bare loop: " + what + ": " + std::strerror(code));
}

}  // namespace

RawDisk::RawDisk(const std::filesystem::path& file, std::uint64_t bytes)
    : file_(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600)),
      bytes_(bytes / kBufferBytes * kBufferBytes) {
  if (!file_) fail("cannot make " + file.string(), errno);
  if (const int code = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes_)); code != 0) {
    fail("cannot allocate " + file.string(), code);
  }
  void* at =
      ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) fail("mmap", errno);
  (void)::madvise(at, kMemoryBytes, MADV_HUGEPAGE);
  memory_ = static_cast<std::byte*>(at);
  for (std::uint64_t i = 0; i < kMemoryBytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = mixed(i);
    std::memcpy(memory_ + i, &word, sizeof word);
  }
  if (const int rc = ::io_uring_queue_init(kReadDepth, &ring_, 0); rc < 0) fail("io_uring", -rc);
  const int number = file_.get();
  if (const int rc = ::io_uring_register_files(&ring_, &number, 1); rc < 0)
    fail("register file", -rc);
  const iovec piece{memory_, kMemoryBytes};
  if (const int rc = ::io_uring_register_buffers(&ring_, &piece, 1); rc < 0) {
    fail("register buffers", -rc);
  }
  fill();
}

RawDisk::~RawDisk() {
  ::io_uring_queue_exit(&ring_);
  ::munmap(memory_, kMemoryBytes);
}

void RawDisk::start(Direction direction, std::uint32_t buffer, std::uint32_t size,
                    std::uint64_t offset) {
  io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
  std::byte* at = memory_ + buffer * kBufferBytes;
  direction == Direction::read ? ::io_uring_prep_read_fixed(entry, 0, at, size, offset, 0)
                               : ::io_uring_prep_write_fixed(entry, 0, at, size, offset, 0);
  entry->flags |= IOSQE_FIXED_FILE;
  entry->user_data = buffer;
}

std::uint32_t RawDisk::wait(std::uint32_t size) {
  io_uring_cqe* entry = nullptr;
  if (::io_uring_peek_cqe(&ring_, &entry) != 0) {
    if (const int rc = ::io_uring_submit_and_wait(&ring_, 1); rc < 0 && rc != -EINTR)
      fail("wait", -rc);
    while (::io_uring_wait_cqe(&ring_, &entry) == -EINTR) {
    }
  }
  const int result = entry->res;
  const auto buffer = static_cast<std::uint32_t>(entry->user_data);
  ::io_uring_cqe_seen(&ring_, entry);
  if (result < 0) fail("transfer", -result);
  if (static_cast<std::uint32_t>(result) != size) fail("short transfer", EIO);
  return buffer;
}

void RawDisk::fill() {
  std::uint32_t in_flight = 0;
  for (std::uint64_t at = 0; at < bytes_; at += kBufferBytes) {
    std::uint32_t buffer = in_flight;
    if (in_flight < kWriteDepth) {
      ++in_flight;
    } else {
      buffer = wait(kBufferBytes);
    }
    start(Direction::write, buffer, kBufferBytes, at);
    (void)::io_uring_submit(&ring_);
  }
  while (in_flight-- > 0) (void)wait(kBufferBytes);
  if (::fsync(file_.get()) != 0) fail("fsync", errno);
}

double RawDisk::run(Direction direction, std::uint32_t size, double seconds) {
  const std::uint64_t places = bytes_ / size;
  const auto place = [&] { return (random_ = mixed(random_)) % places * size; };
  const auto begin = std::chrono::steady_clock::now();
  std::uint32_t in_flight = 0;
  for (; in_flight < depth_of(direction); ++in_flight) start(direction, in_flight, size, place());
  (void)::io_uring_submit(&ring_);
  std::uint64_t done = 0;
  while (in_flight > 0) {
    const std::uint32_t buffer = wait(size);
    done += size;
    if (seconds_since(begin) < seconds) {
      start(direction, buffer, size, place());
      (void)::io_uring_submit(&ring_);
    } else {
      --in_flight;
    }
  }
  return static_cast<double>(done) / seconds_since(begin);
}

}  // namespace kvtier::bench
