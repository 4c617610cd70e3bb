#include "client/transfer/proven_blocks.h"

#include <algorithm>
#include <cstring>

#include "client/base/prefetch.h"
#include "client/record/digest.h"
#include "client/record/record.h"
#include "client/session/session.h"

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

// Whether only the proof differs: with its own tokens in place of ours the record is what was asked
// for.
bool header_holds(std::span<const std::byte> record, const RecordLayout& layout,
                  const BlockIdentity& identity) {
  std::vector<Token> own(layout.block_tokens);
  if (record.size() < layout.proof_offset + own.size() * sizeof(Token)) return false;
  std::memcpy(own.data(), record.data() + layout.proof_offset, own.size() * sizeof(Token));
  return verify_header(record, layout, identity, own).has_value();
}

}  // namespace

bool payload_holds(std::span<const std::byte> record, const RecordLayout& layout) {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof header);
  return header.payload_checksum == 0 ||
         header.payload_checksum ==
             xxh3_64(record.subspan(layout.header_bytes, layout.payload_bytes));
}

ProvenBlocks prove(HeldBlocks& hold, const std::vector<HeldBlocks::Block>& blocks,
                   std::size_t count, const HeaderOf& header_of, const PayloadHolds& payload_of) {
  ProvenBlocks proven;
  const auto note_fault = [&](std::uint32_t block, Error error) {
    Counters::add(hold.session()->counters().faults);
    proven.faults.push_back({block, std::move(error)});
  };
  proven.slots.reserve(count);
  const auto ask_for = [&](std::uint32_t block) {
    if (block < count && blocks[block].presence == HeldBlocks::Presence::ready)
      prefetch_header(header_of(block));
  };
  for (std::uint32_t i = 0; i < kHeadersAhead; ++i) ask_for(i);
  for (std::uint32_t i = 0; i < count; ++i) {
    ask_for(i + kHeadersAhead);
    if (blocks[i].presence == HeldBlocks::Presence::on_its_way) break;
    if (blocks[i].presence == HeldBlocks::Presence::failed) {
      note_fault(i, make_error(Errc::io, "kvtierd could not bring the block to memory"));
      break;
    }
    const BlockIdentity identity{hold.ns().id, hold.keys()[i], hold.parent(i), hold.position(i)};
    auto& counters = hold.session()->counters();
    auto good = verify_header(header_of(i), hold.ns().layout, identity, hold.tokens(i));
    if (good && payload_of && !payload_of(i)) {
      Counters::add(counters.checksum_faults);
      good = make_error(Errc::corrupt, "record: payload checksum");
    } else if (!good) {
      const bool header = !header_holds(header_of(i), hold.ns().layout, identity);
      Counters::add(header ? counters.header_faults : counters.proof_faults);
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
