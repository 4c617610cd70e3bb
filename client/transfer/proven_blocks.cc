#include "client/transfer/proven_blocks.h"

#include <algorithm>

#include "client/session/session.h"
#include "core/base/prefetch.h"

namespace kvtier::transfer {

using session::Counters;
using session::HeldBlocks;

namespace {

// Headers lie a record apart: each is a wait for memory, and for its page's address, by itself.
constexpr std::uint32_t kHeadersAhead = 16;

void prefetch_header(std::span<const std::byte> header) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kRead = 4 * kLine;  // fields and proof, of which every byte is compared
  for (std::size_t at = 0; at < std::min(header.size(), kRead); at += kLine)
    prefetch_memory(header.data() + at);
}

}  // namespace

ProvenBlocks prove(HeldBlocks& hold, const std::vector<HeldBlocks::Block>& blocks,
                   std::size_t count, const HeaderOf& header_of, const PayloadHolds& payload_of) {
  ProvenBlocks proven;
  const auto note_fault = [&](std::uint32_t block, Error error) {
    Counters::add(hold.session()->counters().faults);
    proven.faults.push_back({block, std::move(error)});
  };
  proven.slots.reserve(count);
  PrivateHead head;
  const auto ask_for = [&](std::uint32_t block) {
    if (block < count && blocks[block].presence == HeldBlocks::Presence::ready)
      prefetch_header(header_of(block));
  };
  for (std::uint32_t i = 0; i < kHeadersAhead; ++i) ask_for(i);
  for (std::uint32_t i = 0; i < count; ++i) {
    ask_for(i + kHeadersAhead);
    if (blocks[i].presence == HeldBlocks::Presence::on_its_way) break;
    if (blocks[i].presence == HeldBlocks::Presence::failed) {
      note_fault(
          i, make_error(Errc::io, "the block could not be brought to memory that is mapped here"));
      break;
    }
    const BlockIdentity identity{hold.ns().id, hold.keys()[i], hold.parent(i), hold.position(i)};
    auto& counters = hold.session()->counters();
    const RecordLayout& layout = hold.ns().layout;
    auto good = head.read(header_of(i), layout);
    if (good) good = head.proves(layout, identity, hold.proof(i));
    if (good && payload_of && !payload_of(i, head)) {
      Counters::add(counters.checksum_faults);
      good = make_error(Errc::corrupt, "record: payload checksum");
    } else if (!good) {
      const bool only_proof = head.names(layout, identity).has_value();
      Counters::add(only_proof ? counters.proof_faults : counters.header_faults);
    }
    if (!good) {
      hold.session()->report_bad(identity.key);
      note_fault(i, good.error());
      break;
    }
    proven.slots.push_back(blocks[i].slot);
  }
  hold.note_usable(static_cast<std::uint32_t>(proven.slots.size()),
                   static_cast<std::uint32_t>(count));
  return proven;
}

}  // namespace kvtier::transfer
