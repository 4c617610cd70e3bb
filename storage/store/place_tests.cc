#include "storage/store/place_tests.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/units.h"
#include "storage/index/segments.h"

namespace kvtier::storage {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kPieceBytes = 1_MiB;
// A test that waited so long behind busy queues goes all the same.
constexpr std::chrono::seconds kTestPatience{1};

// Different at each place of a segment, so that what was written elsewhere is not taken for it.
std::uint64_t pattern_at(std::uint32_t segment, std::uint64_t offset) noexcept {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;  // 2^64 over the golden ratio
  const std::uint64_t mixed = (offset + 1) * kOdd ^ (segment + 1ULL) * (kOdd << 1 | 1);
  return mixed ^ mixed >> 29;
}

}  // namespace

PlaceTests::PlaceTests(StoreShared& shared, Availability& availability, BufferNumbers& numbers,
                       SegmentFiles& files, BadPlaces& bad)
    : shared_(shared),
      availability_(availability),
      files_(files),
      bad_(bad),
      memory_(shared, numbers, OwnMemory::Of::place_tests) {}

void PlaceTests::take(PlaceTestCommand&& command) {
  command.since = Clock::now();
  if (availability_.online() && !shared_.closing) {
    queued_.push_back(std::move(command));
  } else {
    finish(command, availability_.or_offline(closing_error()));
  }
}

void PlaceTests::start(bool others_wait) {
  while (!under_way_ && !queued_.empty()) {
    if (others_wait && Clock::now() - queued_.front().since < kTestPatience) return;
    PlaceTestCommand command = std::move(queued_.front());
    queued_.pop_front();
    begin(std::move(command));
  }
}

void PlaceTests::begin(PlaceTestCommand&& command) {
  const std::uint64_t piece = std::min(kPieceBytes, command.slot_bytes);
  auto transfer = memory_.read_from(files_, command.at, command.slot_bytes, piece);
  if (!transfer) {
    // There is no such slot, or no descriptor: nothing is known of the place.
    const Error why = make_error(Errc::unavailable, transfer.error().message);
    return finish(command, why);
  }
  transfer->priority = BlockDevice::Priority::scrub;
  Test& test = under_way_.emplace(std::move(command));
  test.transfer = *transfer;
  test.part = memory_.part_at(transfer->memory);
  write_piece(test);
}

void PlaceTests::write_piece(Test& test) {
  fill(test);
  test.reads = false;
  test.transfer.tag = shared_.new_tag();
  shared_.device.write(test.transfer);
}

void PlaceTests::read_piece(Test& test) {
  std::memset(test.transfer.memory, 0, test.transfer.bytes);
  test.reads = true;
  test.transfer.tag = shared_.new_tag();
  shared_.device.read(test.transfer);
}

void PlaceTests::fill(const Test& test) const {
  for (std::uint64_t at = 0; at < test.transfer.bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = pattern_at(test.command.at.segment, test.transfer.offset + at);
    std::memcpy(test.transfer.memory + at, &word, sizeof word);
  }
}

bool PlaceTests::holds(const Test& test) const {
  for (std::uint64_t at = 0; at < test.transfer.bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = pattern_at(test.command.at.segment, test.transfer.offset + at);
    if (std::memcmp(test.transfer.memory + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

bool PlaceTests::land(const BlockDevice::Completion& completion) {
  if (!under_way_ || under_way_->landed || under_way_->transfer.tag != completion.tag) return false;
  under_way_->landed = completion;
  return true;
}

void PlaceTests::end_landed() {
  if (!under_way_ || !under_way_->landed) return;
  Test& test = *under_way_;
  const BlockDevice::Completion landed = *std::exchange(test.landed, std::nullopt);
  if (!landed.result && Health::state_by(landed.code)) {
    const auto kind = test.reads ? Health::Transfer::read : Health::Transfer::write;
    availability_.transfer_ended(kind, landed, test.command.at);
  }
  if (shared_.closing || !availability_.online())
    return end(availability_.or_offline(closing_error()));
  if (!landed.result) return end(landed.result);
  if (!test.reads) return read_piece(test);
  if (!holds(test)) return end(make_error(Errc::corrupt, "what is read is not what was written"));
  test.tested += test.transfer.bytes;
  if (test.tested == test.command.slot_bytes) return end({});
  test.transfer.offset += test.transfer.bytes;
  test.transfer.bytes =
      static_cast<std::uint32_t>(std::min(kPieceBytes, test.command.slot_bytes - test.tested));
  write_piece(test);
}

void PlaceTests::end(const Result<void>& result) {
  PlaceTestCommand command = std::move(under_way_->command);
  memory_.give_back(under_way_->part);
  under_way_.reset();
  const bool bad = !result && result.error().code != Errc::unavailable;
  if (bad) {
    const BadPlace place = place_of(command.at, command.slot_bytes);
    spdlog::warn(
        "disk tier: {} bytes of segment {} at offset {} do not hold, and are not used again: {}",
        place.bytes, place.segment, place.offset, result.error().message);
    if (const auto added = bad_.add(place); !added) {
      spdlog::warn("disk tier: that is forgotten with the next start: {}", added.error().message);
    }
  }
  finish(command, result);
}

void PlaceTests::fail_queued(const Error& why) {
  for (auto& command : std::exchange(queued_, {})) finish(command, why);
}

void PlaceTests::finish(PlaceTestCommand& command, const Result<void>& result) {
  --shared_.counters.place_tests_pending;
  shared_.finished.add(command.done, result);
}

}  // namespace kvtier::storage
