#include "tests/protocol/hostile/seen_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "core/record/record.h"
#include "core/wire/directory.h"
#include "tests/protocol/hostile/universe.h"

namespace kvtier::protocol {
namespace {

// A field of a record's header takes a value that a careless reader would follow.
void spoil_field(std::span<std::byte> record, Random& random) {
  constexpr std::size_t kFields[]{
      offsetof(RecordHeader, magic),         offsetof(RecordHeader, version),
      offsetof(RecordHeader, header_bytes),  offsetof(RecordHeader, record_bytes),
      offsetof(RecordHeader, payload_bytes), offsetof(RecordHeader, key),
      offsetof(RecordHeader, parent),        offsetof(RecordHeader, payload_checksum),
      offsetof(RecordHeader, block_index),   offsetof(RecordHeader, token_count),
      offsetof(RecordHeader, proof_offset),  offsetof(RecordHeader, scales_offset)};
  const std::size_t at = random.pick(kFields);
  std::uint32_t value;
  std::memcpy(&value, record.data() + at, sizeof value);
  value = random.odd(value, 1);
  std::memcpy(record.data() + at, &value, sizeof value);
}

std::span<std::byte> any_record(const auto& extent, Random& random) {
  const std::uint64_t slots = extent.bytes().size() / extent.slot_bytes;
  return extent.bytes().subspan(random.below(slots) * extent.slot_bytes, extent.slot_bytes);
}

}  // namespace

void SeenMemory::must_fail(bool failed, const char* what) {
  if (!failed) tally_.failures.add(std::string("a client could ") + what);
}

void SeenMemory::add(std::uint32_t id, UniqueFd fd, std::uint64_t bytes, std::uint64_t slot_bytes,
                     bool reader, std::uint8_t pool) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < bytes ||
      slot_bytes == 0) {
    return tally_.failures.add("an extent came with memory that is smaller than the daemon says");
  }
  if (pool != kNoPool && !tally_.owners.seen(status.st_ino, pool))
    tally_.failures.add("memory of an isolated tenant came to a client of another");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SEAL) == 0)
    tally_.failures.add("shared memory came that a client may put seals on");
  Extent extent;
  extent.slot_bytes = slot_bytes;
  extent.writable = !reader;
  auto memory =
      Mapping::map(fd.get(), bytes, reader ? Mapping::Access::read : Mapping::Access::read_write);
  if (!memory) {
    tally_.failures.add(std::string("an extent cannot be mapped: ") + std::strerror(errno));
  } else {
    extent.memory = std::make_shared<Mapping>(std::move(*memory));
  }
  extent.fd = std::move(fd);
  extents_[id] = std::move(extent);
}

void SeenMemory::clear() {
  extents_.clear();
  directory_ = Mapping();
  directory_fd_.reset();
}

void SeenMemory::set_directory(UniqueFd fd, std::uint64_t bytes) {
  auto memory = Mapping::map(fd.get(), bytes, Mapping::Access::read);
  if (!memory) return tally_.failures.add("the directory cannot be mapped");
  directory_ = std::move(*memory);
  directory_fd_ = std::move(fd);
}

bool SeenMemory::knows(std::uint64_t slot) const {
  const auto at = extents_.find(static_cast<std::uint32_t>(slot >> 32));
  if (at == extents_.end()) return false;
  const Extent& extent = at->second;
  return !extent.memory ||
         (std::uint64_t{static_cast<std::uint32_t>(slot)} + 1) * extent.slot_bytes <=
             extent.bytes().size();
}

std::vector<std::uint32_t> SeenMemory::ids() const {
  std::vector<std::uint32_t> ids;
  for (const auto& [id, extent] : extents_) ids.push_back(id);
  return ids;
}

std::span<std::byte> SeenMemory::record(std::uint64_t slot) const {
  const auto at = extents_.find(static_cast<std::uint32_t>(slot >> 32));
  if (at == extents_.end() || !at->second.writable || !knows(slot) || !at->second.memory) return {};
  const Extent& extent = at->second;
  return extent.bytes().subspan(static_cast<std::uint32_t>(slot) * extent.slot_bytes,
                                extent.slot_bytes);
}

SeenMemory::Extent* SeenMemory::any(Random& random) {
  if (extents_.empty()) return nullptr;
  auto at = extents_.begin();
  std::advance(at, random.below(extents_.size()));
  return at->second.memory ? &at->second : nullptr;
}

const SeenMemory::Extent* SeenMemory::any_writable(Random& random) const {
  if (extents_.empty()) return nullptr;
  auto at = extents_.begin();
  std::advance(at, random.below(extents_.size()));
  const Extent& extent = at->second;
  return extent.writable && extent.memory && extent.bytes().size() >= extent.slot_bytes ? &extent
                                                                                        : nullptr;
}

void SeenMemory::scribble(Random& random, std::span<const std::uint64_t> own) {
  std::span<std::byte> into;
  if (!own.empty() && !random.one_in(3)) {
    into = record(random.pick(own));
  } else if (const Extent* extent = any_writable(random)) {
    into = any_record(*extent, random);
  }
  if (into.empty()) return;
  if (!random.one_in(3)) return spoil_field(into, random);
  const std::size_t first = random.one_in(2) ? 0 : random.below(into.size());
  const std::size_t bytes =
      std::min<std::size_t>(into.size() - first, random.one_in(4) ? into.size() : 256);
  for (std::size_t i = 0; i < bytes; i += 8)
    into[first + i] = static_cast<std::byte>(random.next());
}

void SeenMemory::punch(Random& random) {
  const Extent* extent = any(random);
  if (extent == nullptr) return;
  const std::size_t size = extent->bytes().size();
  const std::size_t first = random.one_in(3) ? 0 : random.below(size);
  const std::size_t bytes = random.one_in(3) ? size - first : random.below(size - first) + 1;
  const int rc = ::fallocate(extent->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                             static_cast<off_t>(first), static_cast<off_t>(bytes));
  if (!extent->writable) must_fail(rc != 0, "punch holes into memory that it may only read");
}

void SeenMemory::seal(Random& random) {
  const Extent* extent = any(random);
  if (extent == nullptr) return;
#ifndef F_SEAL_FUTURE_WRITE
  constexpr int F_SEAL_FUTURE_WRITE = 0x0010;
#endif
  constexpr int kSeals[]{F_SEAL_FUTURE_WRITE, F_SEAL_WRITE, F_SEAL_SEAL,
                         F_SEAL_WRITE | F_SEAL_SEAL};
  const int rc = ::fcntl(extent->fd.get(), F_ADD_SEALS, random.pick(kSeals));
  must_fail(rc != 0, "seal shared memory");
  (void)::fcntl(directory_fd_.get(), F_ADD_SEALS, F_SEAL_WRITE);
}

void SeenMemory::resize(Random& random) {
  const Extent* extent = any(random);
  if (extent == nullptr) return;
  const auto size = static_cast<off_t>(extent->bytes().size());
  const off_t wanted = random.one_in(2) ? size * 2 : random.one_in(2) ? 0 : size / 2;
  must_fail(::ftruncate(extent->fd.get(), wanted) != 0, "resize shared memory");
  must_fail(::fallocate(extent->fd.get(), 0, size, 4096) != 0, "make shared memory larger");
}

void SeenMemory::advise(Random& random) {
  const Extent* extent = any(random);
  if (extent == nullptr) return;
  constexpr int kAdvice[]{MADV_DONTNEED, MADV_REMOVE,   MADV_COLD,       MADV_PAGEOUT,
                          MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP};
  const auto bytes = extent->bytes();
  const std::size_t first = random.below(bytes.size() / 4096) * 4096;
  const int advice = random.pick(kAdvice);
  const int rc = ::madvise(bytes.data() + first, bytes.size() - first, advice);
  if (!extent->writable && advice == MADV_REMOVE)
    must_fail(rc != 0, "remove memory that it may only read");
}

void SeenMemory::overreach(Random& random) {
  if (privileged_) return;
  const auto writable = [](int fd) {
    void* const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) ::munmap(at, 4096);
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const UniqueFd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return at != MAP_FAILED || again;
  };
  if (directory_) {
    must_fail(!writable(directory_fd_.get()), "write to the directory");
    must_fail(::mprotect(directory_.bytes().data(), 4096, PROT_READ | PROT_WRITE) != 0,
              "make the directory writable");
  }
  const Extent* extent = any(random);
  if (extent == nullptr || extent->writable) return;
  must_fail(!writable(extent->fd.get()), "write to memory that it may only read");
  must_fail(::mprotect(extent->bytes().data(), 4096, PROT_READ | PROT_WRITE) != 0,
            "make memory writable that it may only read");
}

void SeenMemory::read_directory(Random& random) {
  const auto bytes = directory_.bytes();
  if (bytes.size() <= sizeof(DirectoryHeader)) return;
  DirectoryHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::uint64_t room = (bytes.size() - sizeof header) / sizeof(DirectoryBucket);
  if (header.magic != kDirectoryMagic || (std::uint64_t{1} << header.log2_buckets) > room)
    return tally_.failures.add("the directory's header does not hold");
  const auto* buckets =
      reinterpret_cast<const DirectoryBucket*>(bytes.data() + sizeof(DirectoryHeader));
  for (int i = 0; i < 64; ++i) {
    const auto word = random.pick(buckets[random.below(room)].words).load();
    if (word != 0 && (word & directory_word::kTierMask) > 7)
      tally_.failures.add("a word of the directory names a tier that does not exist");
  }
}

struct SeenMemory::Scribbler::Shared {
  struct Target {
    std::shared_ptr<Mapping> memory;
    std::span<std::byte> record;
  };
  std::atomic<bool> over{false};
  std::vector<Target> targets;
  std::thread thread;

  void run(Random random) {
    while (!over.load(std::memory_order_relaxed) && !targets.empty()) {
      const auto record = random.pick(targets).record;
      // There and back, so that a first look finds what holds and a second what does not.
      std::byte before[sizeof(RecordHeader)];
      std::memcpy(before, record.data(), sizeof before);
      spoil_field(record, random);
      for (int spin = 0; spin < 20; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
      std::memcpy(record.data(), before, sizeof before);
    }
  }
};

SeenMemory::Scribbler::Scribbler(const SeenMemory& memory, std::uint64_t seed,
                                 std::span<const std::uint64_t> slots)
    : shared_(std::make_unique<Shared>()) {
  Random random(seed);
  for (const std::uint64_t slot : slots) {
    if (const auto record = memory.record(slot); !record.empty())
      shared_->targets.push_back(
          {memory.extents_.at(static_cast<std::uint32_t>(slot >> 32)).memory, record});
  }
  for (int i = 0; i < 16 && slots.empty(); ++i) {
    if (const Extent* extent = memory.any_writable(random))
      shared_->targets.push_back({extent->memory, any_record(*extent, random)});
  }
  shared_->thread = std::thread([shared = shared_.get(), random] { shared->run(random); });
}

SeenMemory::Scribbler::~Scribbler() {
  shared_->over = true;
  shared_->thread.join();
}

}  // namespace kvtier::protocol
