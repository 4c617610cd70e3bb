// The index of a disk tier whose records are replaced all the time, through the store as the daemon
// uses it: how many a second, what each costs in bytes written, and what reads feel of it.
//
// What is measured is the index, so that the records' own writes end at once and go nowhere; reads
// are real, of some records in the first segment.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "bench/tiers/indexed_store.h"
#include "bench/tiers/sparse_store.h"
#include "core/base/units.h"
#include "core/record/record.h"
#include "storage/device/wrapped_device.h"
#include "storage/store/record_store.h"

namespace kvtier::bench {
namespace {

using namespace storage;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kCapacityBytes = 4096_GiB;  // what the index's share follows from
constexpr std::uint32_t kReadRecords = 4096;        // in the first segment
constexpr std::uint32_t kWritesAtATime = 64, kReadSlots = 4;
constexpr double kTurnoverBytesMax = 700;

// Writes past the records that are read end as soon as they are reaped.
class IndexOnlyDevice final : public WrappedDevice {
 public:
  explicit IndexOnlyDevice(std::unique_ptr<BlockDevice> inner) : WrappedDevice(std::move(inner)) {}
  const char* kind() const noexcept override { return "index only"; }

 protected:
  void write_impl(const Transfer& transfer) override {
    if (transfer.file.value == 0) return inner().write(transfer);
    ended_.push_back({transfer.tag, {}, 0});
  }
  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    inner().reap(out, ended_.empty() ? wait : Wait::no, at_most);
    std::ranges::move(ended_, std::back_inserter(out));
    ended_.clear();
  }

 private:
  std::vector<Completion> ended_;
};

// Bytes that this process has given to the kernel in files, the index's log and tables above all.
std::uint64_t bytes_given() {
  std::ifstream file("/proc/self/io");
  for (std::string name; file >> name;) {
    std::uint64_t value = 0;
    file >> value;
    if (name == "wchar:") return value;
  }
  throw std::runtime_error("/proc/self/io cannot be read");
}

class Turnover {
 public:
  Turnover(const RecordStoreOptions& options, std::uint32_t blocks)
      : ns_(namespace_of_records(kSmallestRecord)),
        ns_id_(id_of(ns_)),
        layout_(RecordLayout::of(ns_)),
        per_segment_(slots_per_segment(kIndexSegmentBytes, kSmallestRecord)),
        blocks_(blocks),
        keys_(blocks),
        extent_(need(make_memfd_extents(Tier::host, {})
                         ->create(ExtentId(1), {(kWritesAtATime + kReadSlots) * kSmallestRecord,
                                                kSmallestRecord}))) {
    const auto places = places_of(blocks);
    for (std::uint32_t number = 0; number < blocks; ++number)
      keys_[places[number]] = key_of_number(number);
    BlockDevice::Limits limits;
    limits.depth = 256;
    limits.files =
        static_cast<std::uint32_t>(segment_capacity_bytes(options) / options.segment_bytes);
    store_ = need(open_record_store(
        options,
        [this](std::function<void()> task) {
          const std::lock_guard lock(mutex_);
          tasks_.push_back(std::move(task));
          posted_.notify_one();
        },
        std::make_unique<IndexOnlyDevice>(make_block_device(limits))));
    std::uint64_t found = 0;
    need(store_->recover([&](const DiskEntry&) { ++found; }));
    store_->recovered();
    if (found != blocks) throw std::runtime_error("the store lost entries");
    need(store_->register_extent(*extent_));
    for (std::uint32_t place = 0; place < kReadRecords; ++place) {
      replace(place);
      while (writing_ > 0) run_tasks();
    }
  }
  ~Turnover() { store_->close(); }

  // As fast as they go. Seconds.
  double run(std::uint64_t turnovers) {
    const auto begin = Clock::now();
    for (std::uint64_t done = 0; done < turnovers; ++done) {
      while (writing_ == kWritesAtATime) run_tasks();
      replace_any();
    }
    while (writing_ > 0) run_tasks();
    return seconds_since(begin);
  }

  // Microseconds of each read, one after the other, while `per_second` records are replaced.
  std::vector<double> read(double seconds, double per_second) {
    std::vector<double> took;
    const auto begin = Clock::now();
    double replaced = 0;
    while (took.empty() || seconds_since(begin) < seconds) {
      bool landed = false;
      const auto sent = Clock::now();
      need(store_->read(read_of(random() % kReadRecords), [&](const Result<void>& result) {
        need(result);
        took.push_back(seconds_since(sent) * 1e6);
        landed = true;
      }));
      while (!landed) {
        for (; replaced < seconds_since(begin) * per_second && writing_ < kWritesAtATime;
             ++replaced) {
          replace_any();
        }
        run_tasks(std::chrono::microseconds(50));
      }
    }
    while (writing_ > 0) run_tasks();
    return took;
  }

 private:
  std::uint64_t random() { return random_ = mixed(random_); }

  void replace_any() {
    std::uint32_t place = 0;
    do {
      place = per_segment_ + static_cast<std::uint32_t>(random() % (blocks_ - per_segment_));
    } while (keys_[place].is_zero());  // it is being replaced
    replace(place);
  }

  void replace(std::uint32_t place) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    const auto tokens = prompt(random(), kBlockTokens);
    RecordStore::Write write;
    write.identity = {ns_id_, chain_key(ns_id_, Key{}, tokens), Key{}, 0};
    write_header(extent_->slot(slot), layout_, write.identity, tokens);
    write.to = location_of_place(place, per_segment_);
    write.slot_bytes = write.record_bytes = kSmallestRecord;
    write.extent = extent_->id();
    write.slot = slot;
    write.replaces = std::exchange(keys_[place], Key{});
    ++writing_;
    need(store_->write(write,
                       [this, slot, place, key = write.identity.key](const Result<void>& result) {
                         need(result);
                         keys_[place] = key;
                         free_.push_back(slot);
                         --writing_;
                       }));
  }

  RecordStore::Read read_of(std::uint64_t place) {
    RecordStore::Read read;
    read.ns = ns_id_;
    read.key = keys_[place];
    read.from = location_of_place(static_cast<std::uint32_t>(place), per_segment_);
    read.slot_bytes = read.record_bytes = kSmallestRecord;
    read.extent = extent_->id();
    read.slot = kWritesAtATime;
    return read;
  }

  void run_tasks(std::chrono::microseconds at_most = std::chrono::seconds(60)) {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      posted_.wait_for(lock, at_most, [this] { return !tasks_.empty(); });
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
  }

  const Namespace ns_;
  const NamespaceId ns_id_;
  const RecordLayout layout_;
  const std::uint32_t per_segment_, blocks_;
  std::vector<Key> keys_;  // by place; zero while it is being replaced
  std::unique_ptr<Extent> extent_;
  std::vector<std::uint32_t> free_ = [] {
    std::vector<std::uint32_t> slots(kWritesAtATime);
    for (std::uint32_t slot = 0; slot < kWritesAtATime; ++slot) slots[slot] = slot;
    return slots;
  }();
  std::uint32_t writing_ = 0;
  std::uint64_t random_ = 1;

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  std::unique_ptr<RecordStore> store_;
};

}  // namespace

void measure_turnover(const TurnoverOptions& options, Report& report) {
  const ScratchDirectory scratch(options.directory);
  auto store = sparse_options(scratch.path() / "disk", kIndexSegmentBytes, 1);
  store.capacity_bytes = kCapacityBytes;
  make_indexed_store(store, options.blocks);
  const std::string suffix = std::to_string(options.blocks);
  {
    Turnover turnover(store, options.blocks);
    std::vector<double> idle = turnover.read(options.seconds, 0);
    const std::uint64_t before = bytes_given();
    const double seconds = turnover.run(options.turnovers);
    const auto given = static_cast<double>(bytes_given() - before);
    const auto turnovers = static_cast<double>(options.turnovers);
    report.add("turnover.per_s." + suffix, turnovers / seconds, "1/s");
    report.add("turnover.bytes." + suffix, given / turnovers, "B", kTurnoverBytesMax);
    std::vector<double> under = turnover.read(options.seconds, options.per_second);
    const double p99_idle = percentile(idle, 0.99);
    report.add("turnover.read_p99_us.idle", p99_idle, "us");
    report.add("turnover.read_p99_us." + suffix, percentile(under, 0.99), "us", p99_idle);
  }
  const auto begin = Clock::now();
  const auto reopened = need(open_record_store(store, [](const std::function<void()>&) {}));
  std::uint64_t found = 0;
  need(reopened->recover([&](const DiskEntry&) { ++found; }));
  reopened->recovered();
  report.add("turnover.restart_s." + suffix, seconds_since(begin), "s");
  reopened->close();
  if (found != options.blocks) throw std::runtime_error("the restart found other entries");
}

}  // namespace kvtier::bench
