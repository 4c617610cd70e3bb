#include "bench/tiers/tier_disk.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bench/support/records.h"
#include "bench/tiers/sparse_store.h"
#include "core/base/units.h"

namespace kvtier::bench {
namespace {

constexpr std::uint64_t kSegmentBytes = 256_MiB;
// Twice what is in flight, as the daemon's queue keeps the store from running dry.
constexpr std::uint32_t kSlots = 2 * kReadDepth;

storage::RecordStoreOptions options_for(const std::filesystem::path& directory,
                                        std::uint64_t segments) {
  storage::RecordStoreOptions options;
  options.directory = directory;
  options.segment_bytes = kSegmentBytes;
  options.reads_in_flight_max = kReadDepth;
  options.writes_in_flight_max = kWriteDepth;
  options.capacity_bytes = capacity_of(options, segments);
  return options;
}

}  // namespace

TierDisk::TierDisk(const std::filesystem::path& directory, std::uint64_t record_bytes,
                   std::uint64_t bytes)
    : ns_(namespace_of_records(record_bytes)), ns_id_(id_of(ns_)), layout_(RecordLayout::of(ns_)) {
  slots_per_segment_ = storage::slots_per_segment(kSegmentBytes, record_bytes);
  const std::uint64_t segments =
      std::max<std::uint64_t>(1, bytes / record_bytes / slots_per_segment_);
  records_ = static_cast<std::uint32_t>(segments * slots_per_segment_);
  keys_.resize(records_);
  writing_.resize(records_);
  const auto extents = storage::make_memfd_extents(Tier::host, {true, true});
  extent_ = need(extents->create(storage::ExtentId(1), {kSlots * record_bytes, record_bytes}));
  const auto payload = extent_->bytes();
  for (std::size_t i = 0; i < payload.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = mixed(i);
    std::memcpy(payload.data() + i, &word, sizeof word);
  }
  store_ = need(storage::open_record_store(options_for(directory, segments),
                                           [this](std::function<void()> task) {
                                             const std::lock_guard lock(mutex_);
                                             tasks_.push_back(std::move(task));
                                             posted_.notify_one();
                                           }));
  need(store_->recover([](const storage::DiskEntry&) {}));
  store_->recovered();
  need(store_->register_extent(*extent_));
  fill();
}

TierDisk::~TierDisk() {
  store_->close();
}

storage::DiskLocation TierDisk::place_of(std::uint32_t record) const noexcept {
  return {record / slots_per_segment_, record % slots_per_segment_};
}

std::uint32_t TierDisk::random_record() {
  return static_cast<std::uint32_t>((random_ = mixed(random_)) % records_);
}

void TierDisk::run_tasks() {
  std::deque<std::function<void()>> tasks;
  {
    std::unique_lock lock(mutex_);
    posted_.wait(lock, [this] { return !tasks_.empty(); });
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

void TierDisk::landed(std::uint32_t slot, const Result<void>& result) {
  if (!result) throw std::runtime_error("disk tier: " + result.error().message);
  done_bytes_ += layout_.record_bytes;
  free_.push_back(slot);
}

void TierDisk::read(std::uint32_t slot) {
  const std::uint32_t record = random_record();
  storage::RecordStore::Read read;
  read.ns = ns_id_;
  read.key = keys_[record];
  read.from = place_of(record);
  read.slot_bytes = read.record_bytes = layout_.record_bytes;
  read.extent = extent_->id();
  read.slot = slot;
  need(store_->read(read, [this, slot](const Result<void>& r) { landed(slot, r); }));
}

void TierDisk::write(std::uint32_t slot, std::uint32_t record) {
  const auto tokens = prompt(random_ = mixed(random_), kBlockTokens);
  storage::RecordStore::Write write;
  write.identity = {ns_id_, chain_key(ns_id_, Key{}, tokens), Key{}, 0};
  write_header(extent_->slot(slot), layout_, write.identity, tokens);
  write.to = place_of(record);
  write.slot_bytes = write.record_bytes = layout_.record_bytes;
  write.extent = extent_->id();
  write.slot = slot;
  if (!keys_[record].is_zero()) write.replaces = keys_[record];
  keys_[record] = write.identity.key;
  writing_[record] = true;
  need(store_->write(write, [this, slot, record](const Result<void>& result) {
    writing_[record] = false;
    landed(slot, result);
  }));
}

void TierDisk::fill() {
  free_.clear();
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) free_.push_back(slot);
  for (std::uint32_t record = 0; record < records_; ++record) {
    while (free_.empty()) run_tasks();
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    write(slot, record);
  }
  while (free_.size() < kSlots) run_tasks();
}

double TierDisk::run(Direction direction, double seconds) {
  const std::uint32_t slots = 2 * depth_of(direction);
  free_.clear();
  for (std::uint32_t slot = 0; slot < slots; ++slot) free_.push_back(slot);
  done_bytes_ = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto more = [&] { return seconds_since(begin) < seconds; };
  while (more() || free_.size() < slots) {
    for (; !free_.empty() && more();) {
      const std::uint32_t slot = free_.back();
      free_.pop_back();
      if (direction == Direction::read) {
        read(slot);
        continue;
      }
      std::uint32_t record = random_record();
      while (writing_[record]) record = random_record();
      write(slot, record);
    }
    if (free_.size() < slots) run_tasks();
  }
  return static_cast<double>(done_bytes_) / seconds_since(begin);
}

}  // namespace kvtier::bench
