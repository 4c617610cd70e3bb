#include "daemon/restart/kept_state.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/units.h"
#include "core/record/digest.h"
#include "daemon/peers/process_watch.h"
#include "storage/memory/extent.h"

namespace kvtier::daemon {
namespace {

constexpr std::uint64_t kMagic = 0x3130415453495456ULL;  // "VTISTA01" in memory
// A state of version 1 knows fewer fields of namespaces, and is read like one of version 2.
constexpr std::uint32_t kFormatVersion = 2;
constexpr std::uint32_t kFormatOldest = 1;
constexpr std::size_t kBytes = 32_MiB;  // of addresses; memory only as far as it is used

Error corrupt(const std::string& what) {
  return make_error(Errc::corrupt, what);
}

template <class T>
void publish(T& field, T value) noexcept {
  std::atomic_ref(field).store(value, std::memory_order_release);
}

}  // namespace

struct KeptState::Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t complete;
  std::uint64_t generation;  // one more than that of the state before
  Lineage lineage;
  std::byte boot_id[16];  // the host's, for what follows
  std::uint64_t daemon_start_time;
  std::uint32_t daemon_pid;
  std::uint32_t next_extent;
  std::uint64_t used;  // bytes behind the header
  std::uint64_t reserved[6];
};

// Before each encoding, which is padded to 8 bytes.
struct KeptState::Record {
  std::uint64_t bytes;
  std::uint64_t checksum;
};

KeptState::Header& KeptState::header() const noexcept {
  static_assert(sizeof(Header) == 128);
  return *reinterpret_cast<Header*>(mapping_.bytes().data());
}

Result<KeptState::Left> KeptState::read(const UniqueFd& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(Errc::io, "fstat");
  if (status.st_size != static_cast<off_t>(kBytes)) return corrupt("its size");
  // Read, not mapped: whatever it is, it cannot shrink under us.
  Header header;
  if (::pread(fd.get(), &header, sizeof header, 0) != sizeof header) return corrupt("its header");
  if (header.magic != kMagic) return corrupt("its magic");
  if (header.version < kFormatOldest || header.version > kFormatVersion) {
    return make_error(Errc::version, "version " + std::to_string(header.version) +
                                         ", this kvtierd reads " + std::to_string(kFormatVersion));
  }
  if (header.complete != 1) return corrupt("it is not complete");
  const auto& boot = storage::host_boot_id();
  if (std::memcmp(header.boot_id, boot.data(), boot.size()) != 0)
    return corrupt("it is of another boot of this host");
  if (header.used > kBytes - sizeof header || header.next_extent == 0) return corrupt("its sizes");
  Left left{header.generation,
            header.lineage,
            header.next_extent,
            {header.daemon_pid, header.daemon_start_time},
            {}};
  std::vector<std::byte> all(header.used);
  if (::pread(fd.get(), all.data(), all.size(), sizeof header) !=
      static_cast<ssize_t>(all.size())) {
    return errno_error(Errc::io, "pread");
  }
  for (std::size_t at = 0; at + sizeof(Record) <= all.size();) {
    Record record;
    std::memcpy(&record, all.data() + at, sizeof record);
    at += sizeof record;
    if (record.bytes > all.size() - at) return corrupt("the size of a namespace");
    const std::span encoded(all.data() + at, record.bytes);
    if (xxh3_64(encoded) != record.checksum) return corrupt("a namespace that does not hold");
    left.encodings.emplace(NamespaceId{xxh3_128(encoded)},
                           std::vector<std::byte>(encoded.begin(), encoded.end()));
    at += round_up(record.bytes, sizeof(std::uint64_t));
  }
  return left;
}

Result<KeptState> KeptState::create(const Left& left) {
  auto fd = make_memfd("kvtier-state", kBytes);
  if (!fd) return fd.error();
  auto mapping = Mapping::map(fd->get(), kBytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  const auto start_time = start_time_of(::getpid());
  if (!start_time) return start_time.error();
  KeptState state(std::move(*fd), std::move(*mapping));
  Header& header = state.header();
  header.magic = kMagic;
  header.version = kFormatVersion;
  header.generation = left.generation + 1;
  header.lineage = left.lineage;
  if (left.lineage == Lineage{} &&
      ::getrandom(header.lineage.data(), header.lineage.size(), 0) != sizeof(Lineage)) {
    return make_error(Errc::io, "no random bytes for what names this daemon's memory");
  }
  std::memcpy(header.boot_id, storage::host_boot_id().data(), sizeof header.boot_id);
  header.daemon_start_time = *start_time;
  header.daemon_pid = static_cast<std::uint32_t>(::getpid());
  header.next_extent = left.next_extent;
  return state;
}

std::uint64_t KeptState::generation() const noexcept {
  return header().generation;
}

const Lineage& KeptState::lineage() const noexcept {
  return header().lineage;
}

std::uint32_t KeptState::next_extent() noexcept {
  const std::uint32_t number = header().next_extent;
  publish(header().next_extent, number + 1);
  return number;
}

bool KeptState::remember(std::span<const std::byte> encoded) noexcept {
  const std::uint64_t used = header().used;
  const std::size_t bytes = round_up(encoded.size(), sizeof(std::uint64_t));
  const Record record{encoded.size(), xxh3_64(encoded)};
  std::byte* to = mapping_.bytes().data() + sizeof(Header) + used;
  if (kBytes - sizeof(Header) - used < sizeof record + bytes) return false;
  std::memcpy(to, &record, sizeof record);
  std::memcpy(to + sizeof record, encoded.data(), encoded.size());
  publish(header().used, used + sizeof record + bytes);
  return true;
}

void KeptState::set_complete() noexcept {
  publish(header().complete, 1U);
}

}  // namespace kvtier::daemon
