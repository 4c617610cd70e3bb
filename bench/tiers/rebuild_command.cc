// The index of a disk tier made anew from its segments, beside a reading of all of them.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "bench/tiers/sparse_store.h"
#include "core/base/fd.h"
#include "core/base/units.h"
#include "core/record/digest.h"
#include "core/record/record.h"
#include "storage/index/segments.h"
#include "storage/index/store_directory.h"
#include "storage/store/record_store.h"

namespace kvtier::bench {
namespace {

using namespace storage;

constexpr std::uint64_t kSparseSegmentBytes = 256_MiB;
constexpr std::uint64_t kBytesPerRead = 4_MiB;

// Segments as a daemon leaves them, but for the payloads: holes, so that they take no room.
class SparseStore {
 public:
  SparseStore(const std::filesystem::path& directory, const RebuildOptions& wanted)
      : ns_(namespace_of_records(wanted.record_bytes)), layout_(RecordLayout::of(ns_)) {
    slots_ = slots_per_segment(kSparseSegmentBytes, layout_.record_bytes);
    segments_ = static_cast<std::uint32_t>(wanted.bytes / kSparseSegmentBytes);
    if (segments_ == 0) throw std::runtime_error("--bytes is less than a segment");
    options_ = sparse_options(directory, kSparseSegmentBytes, segments_);
    const auto made = need(StoreDirectory::open(options_));
    std::vector<std::byte> head(layout_.header_bytes);
    for (std::uint32_t segment = 0; segment < segments_; ++segment) make(made, segment, head);
  }

  std::uint64_t records() const noexcept { return std::uint64_t{segments_} * slots_; }
  std::uint64_t bytes() const noexcept { return segments_ * kSparseSegmentBytes; }

  // Nothing of it is in memory.
  void forget_pages() const {
    for (const auto& file : files_) {
      const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
      if (::fsync(fd.get()) != 0 || ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) != 0)
        throw std::runtime_error("cannot drop the pages of " + file.string());
    }
  }

  double rebuild() const {
    std::filesystem::remove_all(options_.directory / "index");
    const auto begin = std::chrono::steady_clock::now();
    const auto store = need(open_record_store(options_, [](const std::function<void()>&) {}));
    const double seconds = seconds_since(begin);
    std::uint64_t found = 0;
    need(store->recover([&](const DiskEntry&) { ++found; }));
    store->recovered();
    store->close();
    if (found != records()) {
      throw std::runtime_error("the rebuild found " + std::to_string(found) + " of " +
                               std::to_string(records()) + " records");
    }
    return seconds;
  }

  double read_all() const {
    std::vector<std::byte> buffer(kBytesPerRead);
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& file : files_) {
      const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
      ssize_t got = 0;
      while ((got = ::read(fd.get(), buffer.data(), buffer.size())) > 0) {
      }
      if (got < 0) throw std::runtime_error("cannot read " + file.string());
      (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    return seconds_since(begin);
  }

 private:
  void make(const StoreDirectory& directory, std::uint32_t segment, std::vector<std::byte>& head) {
    const std::uint64_t slot_bytes = layout_.record_bytes;
    files_.push_back(segment_path(directory, segment));
    const UniqueFd fd = make_sparse_segment(directory, segment, kSparseSegmentBytes, slot_bytes);
    bool good = true;
    for (std::uint32_t slot = 0; good && slot < slots_; ++slot) {
      seal(head, std::uint64_t{segment} * slots_ + slot);
      good = ::pwrite(fd.get(), head.data(), head.size(),
                      static_cast<off_t>(slot_offset(slot, slot_bytes))) ==
             static_cast<ssize_t>(head.size());
    }
    if (!good) throw std::runtime_error("cannot write " + files_.back().string());
  }

  void seal(std::vector<std::byte>& head, std::uint64_t number) {
    const std::vector<Token> tokens = prompt(number, ns_.block_tokens);
    const NamespaceId id = id_of(ns_);
    const Key key = chain_key(id, Key{}, tokens);
    std::fill(head.begin(), head.end(), std::byte{0});
    write_header(head, layout_, {id, key, Key{}, 0}, tokens);
    // No payload is read, so that its checksum need not be one.
    RecordHeader header;
    std::memcpy(&header, head.data(), sizeof header);
    header.header_checksum = xxh3_64(head);
    std::memcpy(head.data(), &header, sizeof header);
  }

  const Namespace ns_;
  const RecordLayout layout_;
  RecordStoreOptions options_;
  std::uint32_t slots_ = 0, segments_ = 0;
  std::vector<std::filesystem::path> files_;
};

}  // namespace

void measure_rebuild(const RebuildOptions& options, Report& report) {
  const ScratchDirectory scratch(options.directory);
  const SparseStore store(scratch.path() / "disk", options);
  std::vector<double> rebuilt, read;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    store.forget_pages();
    rebuilt.push_back(store.rebuild());
    store.forget_pages();
    read.push_back(store.read_all());
  }
  const std::string suffix = std::to_string(store.bytes() >> 30) + "GiB";
  report.add("rebuild.records." + suffix, static_cast<double>(store.records()), "records");
  report.add("rebuild.reading_all_s." + suffix, median(read), "s");
  report.add("rebuild.s." + suffix, median(rebuilt), "s", median(read));
}

}  // namespace kvtier::bench
