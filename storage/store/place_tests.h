// Tests of places that have failed: a pattern is written over a slot that nothing else uses, and
// read back, in pieces, behind all reads and writes.
//
// Owned by the loop, on the store's thread. It holds:
// - One test is under way at a time, with one transfer; a test ends once, in finish(), and its part
//   of the memory goes back before that.
// - A place that does not hold is in the log of bad places before its test ends. What fails because
//   the store cannot be written to any more says nothing of the place.
// - Its transfers say nothing of the device's health, for they go where it has failed already; but
//   for what no place can be blamed for.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "storage/store/bad_places.h"
#include "storage/store/thread/own_memory.h"

namespace kvtier::storage {

class PlaceTests {
 public:
  PlaceTests(StoreShared& shared, Availability& availability, BufferNumbers& numbers,
             SegmentFiles& files, BadPlaces& bad);

  void take(PlaceTestCommand&& command);
  // `others_wait`: reads, writes or scrubs that are not in flight yet.
  void start(bool others_wait);
  // False: no test has a transfer of that tag.
  bool land(const BlockDevice::Completion& completion);
  void end_landed();
  void fail_queued(const Error& why);

  bool is_idle() const noexcept { return !under_way_; }

 private:
  struct Test {
    explicit Test(PlaceTestCommand&& what) : command(std::move(what)) {}

    PlaceTestCommand command;
    std::uint32_t part = 0;
    BlockDevice::Transfer transfer;  // of the piece
    std::uint64_t tested = 0;        // bytes before the piece
    bool reads = false;
    std::optional<BlockDevice::Completion> landed;
  };

  void begin(PlaceTestCommand&& command);
  void write_piece(Test& test);
  void read_piece(Test& test);
  bool holds(const Test& test) const;
  void fill(const Test& test) const;
  void end(const Result<void>& result);
  void finish(PlaceTestCommand& command, const Result<void>& result);

  StoreShared& shared_;
  Availability& availability_;
  SegmentFiles& files_;
  BadPlaces& bad_;
  OwnMemory memory_;
  std::deque<PlaceTestCommand> queued_;
  std::optional<Test> under_way_;
};

}  // namespace kvtier::storage
