#include "daemon/server/scrubber.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Scrubber::Scrubber(Options options, DiskTier& disk, Catalogue& catalogue)
    : options_(std::move(options)), disk_(disk), catalogue_(catalogue) {}

void Scrubber::start() {
  if (running_ && fast_) return;
  begin(true);
  advance();
}

void Scrubber::tick() {
  const Time now = options_.now();
  const auto since = last_tick_ == Time{} ? Time::duration{} : now - last_tick_;
  last_tick_ = now;
  if (options_.bytes_per_second == 0 && !running_) return;
  if (!running_ && (number_ == 0 || now - current_.began >= options_.pass_every)) begin(false);
  if (!running_) return;
  // What a stalled daemon did not use is lost, so that it does not come as one burst.
  const double seconds = std::min(std::chrono::duration<double>(since).count(), 2.0);
  const auto rate = static_cast<double>(options_.bytes_per_second);
  budget_bytes_ = std::min(budget_bytes_ + static_cast<std::int64_t>(seconds * rate),
                           static_cast<std::int64_t>(2 * rate));
  advance();
}

void Scrubber::begin(bool fast) {
  running_ = true;
  fast_ = fast;
  device_ = segment_ = slot_ = 0;
  budget_bytes_ = 0;
  current_ = {};
  current_.began = options_.now();
  ++number_;
}

bool Scrubber::may_go_on() const noexcept {
  return running_ && !step_waits_ && under_way_ < storage::kScrubsMax &&
         (fast_ || budget_bytes_ > 0);
}

bool Scrubber::at_end() const noexcept {
  return device_ == disk_.devices().size();
}

// The block in the slot under the cursor, perhaps none; the cursor goes on.
BlockId Scrubber::next() {
  const DiskDevice& on = *disk_.devices()[device_];
  BlockId id = kNoBlock;
  if (segment_ < on.segments() && slot_ < on.blocks_in(segment_).size()) {
    id = on.blocks_in(segment_)[slot_++];
    return id;
  }
  slot_ = 0;
  if (++segment_ < on.segments()) return id;
  segment_ = 0;
  ++device_;
  return id;
}

void Scrubber::advance() {
  std::uint32_t passed = 0;
  while (may_go_on() && !at_end()) {
    if (passed++ >= limits::kScrubStep && disk_.later) {
      step_waits_ = true;
      return disk_.later([this] {
        step_waits_ = false;
        advance();
      });
    }
    const BlockId id = next();
    if (id != kNoBlock && !catalogue_.doomed(id) && !check(id)) {
      --slot_;
      break;
    }
  }
  if (running_ && at_end() && under_way_ == 0) finish();
}

// False: the store takes no more now, and a completion will go on from here.
bool Scrubber::check(BlockId id) {
  const Block& block = catalogue_.block(id);
  const Place at = block.places[index_of(Tier::disk)];
  DiskDevice& on = *disk_.devices()[device_of(at)];
  if (!on.readable()) {
    ++current_.skipped;
    return true;
  }
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const NamespaceId ns = catalogue_.namespaces()[block.ns].id;
  on.watch(location_of(at));
  const auto sent = on.store().scrub(
      {ns, block.key, location_of(at), bytes, bytes},
      [this, at, id, bytes, pass = number_, device = device_of(at)](const Result<void>& result) {
        checked(device, at, id, bytes, pass == number_, result);
      });
  if (!sent) {
    (void)on.unwatch(location_of(at));
    if (sent.error().code == Errc::no_space && under_way_ > 0) return false;
    ++current_.skipped;
    return true;
  }
  ++under_way_;
  (void)on.began();
  budget_bytes_ -= static_cast<std::int64_t>(bytes);
  KVTIER_POINT("daemon.scrub.started");
  return true;
}

void Scrubber::checked(std::uint32_t device, Place at, BlockId id, std::uint64_t bytes,
                       bool of_this_pass, const Result<void>& result) {
  --under_way_;
  DiskDevice& on = *disk_.devices()[device];
  on.ended();
  const bool kept = on.unwatch(location_of(at));
  Pass ignored;
  Pass& pass = of_this_pass ? current_ : ignored;
  const bool failed = !result && result.error().code != Errc::unavailable;
  if (!kept || (!result && !failed)) {
    ++pass.skipped;
  } else {
    ++pass.records;
    pass.bytes += bytes;
  }
  if (kept && failed) {
    ++pass.corrupt;
    ++(result.error().code == Errc::corrupt ? on.counts.corrupt : on.counts.failures);
    spdlog::warn("scrub: block {} on {} does not hold and is forgotten: {}",
                 to_hex(catalogue_.block(id).key), on.directory(), result.error().message);
    // Under a read it is left to that read, which will find the same.
    (void)disk_.retire(id, result.error());
  }
  advance();
}

void Scrubber::finish() {
  running_ = false;
  ++passes_;
  current_.ended = options_.now();
  last_ = current_;
  spdlog::info("scrub: {} records checked, {} corrupt, {} skipped", last_.records, last_.corrupt,
               last_.skipped);
}

}  // namespace kvtier::daemon
