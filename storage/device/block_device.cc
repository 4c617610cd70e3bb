#include "storage/device/block_device.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "core/base/check.h"
#include "core/record/record.h"

namespace kvtier::storage {
namespace {

bool aligned(std::uint64_t n) noexcept {
  return n % kRecordAlignment == 0;
}

}  // namespace

Result<void> BlockDevice::open_file(FileId file, const std::filesystem::path& path) {
  KVTIER_CHECK(file.value < limits_.files && !is_open(file));
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
  if (!fd && errno == EINVAL) {
    fd.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (fd && !buffered_io_reported_) {
      buffered_io_reported_ = true;
      spdlog::warn("{}: this file system has no O_DIRECT; records pass through the page cache",
                   path.string());
    }
  }
  struct stat status {};
  if (fd && (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)))
    return make_error(Errc::io, path.string() + " is not a file");
  if (!fd) {
    const bool too_many = errno == EMFILE || errno == ENFILE;
    return errno_error(errno == ENOENT ? Errc::not_found
                       : too_many      ? Errc::no_space
                                       : Errc::io,
                       "cannot open " + path.string() +
                           (too_many ? " (too few file descriptors: raise RLIMIT_NOFILE, "
                                       "LimitNOFILE= in a unit)"
                                     : ""));
  }
  // A drive that takes such hints keeps records, which stay long, apart from what the index writes,
  // which does not: RocksDB says that of its own files.
  std::uint64_t lifetime = RWH_WRITE_LIFE_LONG;
  (void)::fcntl(fd.get(), F_SET_RW_HINT, &lifetime);
  if (const auto opened = open_file_impl(file, std::move(fd), path); !opened) return opened.error();
  files_.emplace(file.value, path);
  return {};
}

void BlockDevice::close_file(FileId file) {
  KVTIER_CHECK(is_open(file));
  close_file_impl(file);
  files_.erase(file.value);
}

Result<void> BlockDevice::add_buffer(BufferId buffer, std::span<std::byte> memory) {
  KVTIER_CHECK(buffer.value < limits_.buffers && !buffers_.contains(buffer.value));
  KVTIER_CHECK(aligned(reinterpret_cast<std::uintptr_t>(memory.data())) && !memory.empty());
  if (const auto added = add_buffer_impl(buffer, memory); !added) return added.error();
  buffers_.emplace(buffer.value, memory);
  return {};
}

void BlockDevice::pin_buffer(BufferId buffer) {
  KVTIER_CHECK(buffers_.contains(buffer.value));
  pin_buffer_impl(buffer, buffers_.at(buffer.value));
}

void BlockDevice::unpin_buffer(BufferId buffer) {
  KVTIER_CHECK(buffers_.contains(buffer.value));
  unpin_buffer_impl(buffer);
}

void BlockDevice::remove_buffer(BufferId buffer) {
  KVTIER_CHECK(buffers_.contains(buffer.value));
  remove_buffer_impl(buffer);
  buffers_.erase(buffer.value);
}

void BlockDevice::check(const Transfer& transfer) const {
  KVTIER_CHECK(is_open(transfer.file));
  KVTIER_CHECK(transfer.bytes > 0 && aligned(transfer.bytes) && aligned(transfer.offset));
  KVTIER_CHECK(aligned(reinterpret_cast<std::uintptr_t>(transfer.memory)));
  const auto buffer = buffers_.find(transfer.buffer.value);
  KVTIER_CHECK(buffer != buffers_.end());
  const auto memory = buffer->second;
  KVTIER_CHECK(transfer.memory >= memory.data() &&
               transfer.memory + transfer.bytes <= memory.data() + memory.size());
}

void BlockDevice::read(const Transfer& transfer) {
  check(transfer);
  ++in_flight_;
  ++counters_.reads;
  counters_.bytes_read += transfer.bytes;
  read_impl(transfer);
}

void BlockDevice::write(const Transfer& transfer) {
  check(transfer);
  ++in_flight_;
  ++counters_.writes;
  counters_.bytes_written += transfer.bytes;
  write_impl(transfer);
}

void BlockDevice::sync(FileId file, std::uint64_t tag) {
  KVTIER_CHECK(is_open(file));
  ++in_flight_;
  ++counters_.syncs;
  sync_impl(file, tag);
}

void BlockDevice::reap(std::vector<Completion>& out, Wait wait, Duration at_most) {
  const std::size_t before = out.size();
  reap_impl(out, wait, at_most);
  const std::size_t completed = out.size() - before;
  KVTIER_CHECK(completed <= in_flight_);
  in_flight_ -= completed;
  for (std::size_t i = before; i < out.size(); ++i) counters_.failures += out[i].result ? 0 : 1;
}

std::unique_ptr<BlockDevice> make_block_device(BlockDevice::Limits limits, DeviceOptions options) {
  auto uring = options.force_threads
                   ? Result<std::unique_ptr<BlockDevice>>(make_error(
                         Errc::io, "the setting force_threads is on; take it out for io_uring"))
                   : make_uring_device(limits, options);
  if (uring) return std::move(*uring);
  spdlog::warn("disk I/O by threads, slower than io_uring: {}", uring.error().message);
  return make_thread_device(limits);
}

}  // namespace kvtier::storage
