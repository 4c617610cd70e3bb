// The parts of the store's thread, wired as the loop wires them, for tests of one part at a time:
// over a real directory and a device that fails when it is told to. The test is the store's thread;
// nothing is started, and no turn happens, but by what it calls.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "storage/store/thread/reads.h"
#include "storage/store/thread/scrubs.h"
#include "storage/store/thread/writes.h"
#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/faults/index_files.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage::testing {

// What a command was told at its end, once Parts::pump() or told() has passed it on.
class Told {
 public:
  RecordStore::Done<void> done() {
    return [results = results_](Result<void> result) { results->push_back(std::move(result)); };
  }
  std::size_t times() const { return results_->size(); }
  bool ok() const { return times() == 1 && results_->front().has_value(); }
  std::optional<Errc> error() const {
    if (times() != 1 || results_->front()) return std::nullopt;
    return results_->front().error().code;
  }

 private:
  std::shared_ptr<std::vector<Result<void>>> results_ =
      std::make_shared<std::vector<Result<void>>>();
};

class Parts : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSlotBytes = 64_KiB;
  static constexpr std::uint32_t kSlots = 64;

  Parts() {
    extent =
        *make_memfd_extents(Tier::host, {})->create(ExtentId(1), {kSlots * kSlotBytes, kSlotBytes});
    extents.add({extent->id(), extent->bytes(), kSlotBytes});
    pump_until([this] { return !extents.is_populating(); });
  }

  // What workers and the device have done since, carried to the parts; then who waits is told.
  void pump() {
    for (StoreCommand& command : shared.inbox.take()) {
      if (const auto* pages = std::get_if<PopulatedCommand>(&command)) {
        extents.populated(*pages);
      } else {
        const auto& sums = std::get<ChecksumCommand>(command);
        EXPECT_TRUE(reads.verified(sums) || scrubs.verified(sums) || writes.sealed(sums));
      }
    }
    std::vector<BlockDevice::Completion> completions;
    device->reap(completions, BlockDevice::Wait::yes, BlockDevice::Duration(1));
    for (const auto& completion : completions) {
      if (completion.tag == 0) {
        flushes.land_sync(completion);
      } else {
        EXPECT_TRUE(reads.land(completion) || writes.land(completion) || scrubs.land(completion));
      }
    }
    reads.end_landed();
    writes.end_landed();
    scrubs.end_landed();
    changes.commit();
    flushes.advance();
    tell();
  }
  void pump_until(const std::function<bool()>& done) {
    const auto deadline = Health::Clock::now() + std::chrono::seconds(60);
    while (!done()) {
      ASSERT_LT(Health::Clock::now(), deadline) << "what the test waits for does not come";
      pump();
    }
  }
  void tell() { shared.finished.post(); }

  WriteCommand write_of(const TestRecord& record, DiskLocation to, Told& told,
                        std::uint32_t slot = 0) {
    std::ranges::copy(record.bytes, extent->slot(slot).begin());
    RecordStore::Write write;
    write.identity = record.identity;
    write.to = to;
    write.slot_bytes = write.record_bytes = record.bytes.size();
    write.extent = extent->id();
    write.slot = slot;
    ++counters.writes_pending;
    return {write, told.done(), 0, 0, {}};
  }
  ReadCommand read_of(const TestRecord& record, DiskLocation from, Told& told,
                      std::uint32_t slot = 1) {
    RecordStore::Read read;
    read.ns = record.identity.ns;
    read.key = record.identity.key;
    read.from = from;
    read.slot_bytes = read.record_bytes = record.bytes.size();
    read.extent = extent->id();
    read.slot = slot;
    ++counters.reads_pending;
    return {read, told.done()};
  }
  ScrubCommand scrub_of(const TestRecord& record, DiskLocation from, Told& told) {
    ++counters.scrubs_pending;
    return {
        {record.identity.ns, record.identity.key, from, record.bytes.size(), record.bytes.size()},
        told.done(),
        {},
        0};
  }
  void start_writes() {
    writes.seal_ahead();
    writes.start(false);
  }
  void put(const TestRecord& record, DiskLocation to) {
    Told told;
    writes.take(write_of(record, to, told));
    start_writes();
    pump_until([&] { return told.times() > 0; });
    ASSERT_TRUE(told.ok());
  }
  bool is_indexed(const TestRecord& record) {
    const auto at = index->find(record.identity.key);
    return at && at->has_value();
  }

  Faults faults;
  IndexFiles index_files;
  TestDirectory scratch;
  RecordStoreOptions options = [this] {
    RecordStoreOptions small = small_options(scratch.path());
    small.probe_first = std::chrono::milliseconds(1);
    small.probe_max = std::chrono::milliseconds(4);
    small.reads_in_flight_max = 4;
    small.writes_in_flight_max = 8;
    return small;
  }();
  std::unique_ptr<Segments> segments = [this] {
    std::filesystem::create_directories(scratch.path() / "segments");
    auto made = std::make_unique<Segments>(scratch.path() / "segments", StoreId{},
                                           options.segment_bytes, 16);
    EXPECT_TRUE(made->load());
    return made;
  }();
  Erasures erasures = *Erasures::open(new_log());
  std::unique_ptr<Index> index = *Index::open(
      {scratch.path() / "index", StoreId{}, 32_MiB, Index::Compaction::runs, index_files.env()});
  std::unique_ptr<BlockDevice> device =
      make_faulty_device(make_thread_device({.depth = 64, .files = 16, .buffers = 8}), faults);
  StoreCounters counters;
  std::vector<Error> queues_failed;
  Result<void> looks, probes;  // what a look and a probe are to find
  std::uint32_t looked = 0, probed = 0;

  StoreShared shared{options, *device, counters, [](const std::function<void()>& task) { task(); }};
  Availability availability{shared,
                            {.fail_queued = [this](const Error& why) { fail_queued(why); },
                             .fail_writes =
                                 [this](const Error& why) {
                                   queues_failed.push_back(why);
                                   writes.fail_queued(why);
                                 },
                             .look =
                                 [this] {
                                   ++looked;
                                   return looks;
                                 },
                             .probe =
                                 [this](DiskState) {
                                   ++probed;
                                   return probes;
                                 }}};
  SegmentFiles files{shared, availability, *segments};
  IndexChanges changes{availability, *index, erasures};
  Unsynced unsynced;
  Flushes flushes{shared, availability, files, changes, unsynced};
  Erases erases{shared, availability, changes, flushes, unsynced};
  RingExtents extents{shared, workers};
  Reads reads{shared, availability, extents, files, workers};
  Scrubs scrubs{shared, availability, extents.numbers(), files, workers};
  Writes writes{shared,
                {availability, extents, files, changes, erases, flushes, unsynced, workers}};
  std::unique_ptr<Extent> extent;
  Workers workers{1};

 private:
  std::filesystem::path new_log() const {
    const auto file = scratch.path() / "ERASED";
    EXPECT_TRUE(Erasures::make(file));
    return file;
  }
  void fail_queued(const Error& why) {
    queues_failed.push_back(why);
    reads.fail_queued(why);
    scrubs.fail_queued(why);
    writes.fail_queued(why);
  }
};

}  // namespace kvtier::storage::testing
