#include "storage/store/thread/scrubs.h"

#include "storage/index/points.h"
#include "storage/index/record_checks.h"

namespace kvtier::storage {
namespace {

using Clock = std::chrono::steady_clock;

// A scrub that waited so long behind busy queues goes all the same, one at a time.
constexpr std::chrono::seconds kPatience{1};

}  // namespace

Scrubs::Scrubs(StoreShared& shared, Availability& availability, BufferNumbers& numbers,
               SegmentFiles& files, Workers& workers)
    : shared_(shared),
      availability_(availability),
      files_(files),
      workers_(workers),
      memory_(shared, numbers, OwnMemory::Of::scrubs) {}

void Scrubs::take(ScrubCommand&& command) {
  command.since = Clock::now();
  if (availability_.readable()) {
    queued_.push_back(std::move(command));
  } else {
    finish(command, availability_.offline());
  }
}

bool Scrubs::may_start(bool others_wait) const {
  if (queued_.empty() || !memory_.has_room(queued_.front().scrub.record_bytes)) return false;
  if (!others_wait) return true;
  return in_flight_.empty() && Clock::now() - queued_.front().since >= kPatience;
}

void Scrubs::start(bool others_wait) {
  while (may_start(others_wait)) {
    ScrubCommand command = std::move(queued_.front());
    queued_.pop_front();
    auto transfer = prepare(command);
    if (!transfer) {
      finish(command, transfer.error());
      continue;
    }
    transfer->tag = shared_.new_tag();
    shared_.device.read(*transfer);
    in_flight_.emplace(transfer->tag, std::move(command));
    KVTIER_STORAGE_POINT("storage.scrub.submitted");
  }
}

Result<BlockDevice::Transfer> Scrubs::prepare(ScrubCommand& command) {
  const RecordStore::Scrub& scrub = command.scrub;
  auto transfer = memory_.read_from(files_, scrub.from, scrub.slot_bytes, scrub.record_bytes);
  if (!transfer) return transfer;
  command.part = memory_.part_at(transfer->memory);
  transfer->priority = BlockDevice::Priority::scrub;
  return transfer;
}

std::optional<DiskLocation> Scrubs::land(const BlockDevice::Completion& completion) {
  auto scrub = in_flight_.extract(completion.tag);
  if (scrub.empty()) return std::nullopt;
  const DiskLocation at = scrub.mapped().scrub.from;
  landed_.emplace_back(std::move(scrub.mapped()), completion.result);
  return at;
}

void Scrubs::end_landed() {
  for (auto& [command, result] : landed_) end(command, result);
  landed_.clear();
}

void Scrubs::end(ScrubCommand& command, const Result<void>& transferred) {
  if (!transferred || !availability_.readable()) {
    memory_.give_back(command.part);
    return finish(command, availability_.or_unreadable(transferred));
  }
  const RecordStore::Scrub scrub = command.scrub;
  const auto record = memory_.part(command.part).first(scrub.record_bytes);
  const std::uint64_t tag = shared_.new_tag();
  verifying_.emplace(tag, std::move(command));
  workers_.submit([&inbox = shared_.inbox, tag, record, scrub] {
    inbox.send(ChecksumCommand{tag, verify_record(record, scrub.ns, scrub.key, scrub.from)});
  });
}

bool Scrubs::verified(const ChecksumCommand& command) {
  auto scrub = verifying_.extract(command.tag);
  if (scrub.empty()) return false;
  if (!command.result) ++shared_.counters.checksum_failures;
  memory_.give_back(scrub.mapped().part);
  finish(scrub.mapped(), command.result);
  return true;
}

void Scrubs::fail_queued(const Result<void>& failed) {
  for (auto& command : std::exchange(queued_, {})) finish(command, failed);
}

void Scrubs::finish(ScrubCommand& command, Result<void> result) {
  --shared_.counters.scrubs_pending;
  shared_.finished.add(command.done, std::move(result));
}

}  // namespace kvtier::storage
