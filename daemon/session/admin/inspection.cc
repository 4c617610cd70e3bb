#include "daemon/session/admin/inspection.h"

#include <algorithm>

#include "core/record/private_head.h"
#include "daemon/limits.h"
#include "daemon/session/wire_values.h"
#include "kvtier/namespace.h"

namespace kvtier::daemon {
namespace {

using Checked = wire::Inspected::Checked;

// Of a record that the daemon can address.
void check(wire::Inspected::Placement::Builder out, std::span<const std::byte> record,
           const NamespaceId& ns, const Key& key) {
  if (record.empty()) return out.setNote("the daemon cannot address this memory; its clients can");
  if (record.size() > limits::kInspectBytesMax)
    return out.setNote("too large a record to be read while clients wait");
  PrivateHead head;
  auto good = head.read(record);
  const RecordHeader& header = head.header();
  if (good && (header.ns != ns || header.key != key))
    good = make_error(Errc::corrupt, "record: of another block");
  if (good && header.payload_checksum == 0 && header.header_checksum == 0) {
    out.setChecked(Checked::UNSEALED);
    return out.setNote("it gets its checksum when it is written to disk");
  }
  if (good) good = head.holds(record);
  if (!good) {
    out.setChecked(Checked::CORRUPT);
    return out.setNote(good.error().message);
  }
  out.setChecked(Checked::HOLDS);
}

std::uint64_t milliseconds_until(std::chrono::steady_clock::time_point time) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(time - std::chrono::steady_clock::now());
  return static_cast<std::uint64_t>(std::max<long>(left.count(), 1));
}

}  // namespace

void Inspection::fill_namespace(wire::ListReply::Namespace::Builder out, std::uint16_t ns) const {
  const KnownNamespace& known = context_.cache.catalogue().namespaces()[ns];
  out.setId(data_of(known.id));
  out.setTenant(context_.cache.catalogue().tenants()[known.tenant].name);
  if (auto shown = decode_namespace(known.encoded)) {
    out.setSalted(!shown->tenant.empty());
    shown->tenant.clear();
    const auto encoded = encode(*shown);
    out.setEncoded({reinterpret_cast<const kj::byte*>(encoded.data()), encoded.size()});
  }
  out.setBlocks(known.blocks);
  auto bytes = out.initBytes(kTiers);
  auto hits = out.initHits(kTiersWithRemote);
  for (unsigned t = 0; t < kTiers; ++t) bytes.set(t, known.bytes[t]);
  for (unsigned t = 0; t < kTiersWithRemote; ++t) hits.set(t, known.lookups.hits[t]);
  out.setClosed(known.closed);
  out.setSessions(known.opened);
}

void Inspection::fill_block(wire::ListReply::Block::Builder out, BlockId id) const {
  const Catalogue& catalogue = context_.cache.catalogue();
  const Block& block = catalogue.block(id);
  std::uint32_t holds = 0;
  for (const Tier tier : kAllTiers)
    holds += block.holds[index_of(tier)] - (block.pinned.has(tier) ? 1U : 0U);
  out.setKey(data_of(block.key));
  out.setNs(data_of(catalogue.namespaces()[block.ns].id));
  out.setBlockIndex(block.block_index);
  out.setTiers(block.tiers.bits);
  out.setLeases(holds);
  out.setRecordBytes(catalogue.record_bytes(id));
  out.setLastAccess(block.last_access);
  out.setPinned(block.pinned.bits);
  TierSet kept, demoted;
  std::uint8_t priority = 0;
  for (const Tier tier : {Tier::device, Tier::host}) {
    const Rank rank = block.rank(tier);
    if (is_kept(rank)) kept = kept.with(tier);
    if (block.tiers.has(tier) && rank == Rank::spent) demoted = demoted.with(tier);
    if (is_raised(rank))
      priority = std::max(priority, context_.cache.hints().raised(id, tier).priority);
  }
  out.setKept(kept.bits);
  out.setDemoted(demoted.bits);
  out.setPriority(priority);
}

void Inspection::fill_placement(wire::Inspected::Placement::Builder out, BlockId id, Tier tier,
                                bool verify) const {
  BlockCache& cache = context_.cache;
  const Block& block = cache.catalogue().block(id);
  const Place at = block.places[index_of(tier)];
  const std::uint32_t device = cache.catalogue().device(id, tier);
  out.setTier(static_cast<std::uint8_t>(tier));
  out.setContainer(tier == Tier::disk ? location_of(at).segment : at.container);
  out.setSlot(at.slot);
  out.setDevice(device);
  out.setWhere(context_.ports.name_of_part(tier, device));
  out.setHolds(block.holds[index_of(tier)] - (block.pinned.has(tier) ? 1U : 0U));
  if (const auto until = cache.pins().until(id, tier)) out.setPinnedMs(milliseconds_until(*until));
  const auto raised = cache.hints().raised(id, tier);
  if (raised.until) out.setKeptMs(milliseconds_until(*raised.until));
  out.setPriority(raised.priority);
  out.setDemoted(block.rank(tier) == Rank::spent);
  out.setOnline(tier != Tier::disk || cache.disk().devices()[device]->readable());
  if (!verify || tier == Tier::disk) return;
  check(out, cache.memory(tier, at).slot(at), cache.catalogue().namespaces()[block.ns].id,
        block.key);
}

void Inspection::fill_inspected(wire::Inspected::Builder out, BlockId id, bool verify) const {
  const Catalogue& catalogue = context_.cache.catalogue();
  const Block& block = catalogue.block(id);
  fill_block(out.initBlock(), id);
  fill_namespace(out.initNamespace(), block.ns);
  out.setParent(data_of(catalogue.parent(id)));
  out.setParentCached(catalogue.find(block.ns, catalogue.parent(id)) != kNoBlock);
  out.setLoading(block.loading);
  out.setWriteQueued(block.write_queued);
  out.setDoomed(block.doomed);
  out.setClock(context_.cache.clock());
  unsigned count = 0;
  for (const Tier tier : kAllTiers) count += block.tiers.has(tier) ? 1 : 0;
  auto placements = out.initPlacements(count);
  unsigned i = 0;
  for (const Tier tier : kAllTiers) {
    if (block.tiers.has(tier)) fill_placement(placements[i++], id, tier, verify);
  }
}

Result<void> Inspection::inspect(std::uint64_t id, wire::InspectRequest::Reader request) {
  const auto key = digest_from<Key>(request.getKey());
  if (!key) return make_error(Errc::malformed, "request: a key of the wrong size");
  BlockCache& cache = context_.cache;
  const BlockId block = cache.catalogue().find_any(*key);
  if (block == kNoBlock) {
    connection_.reply_error(id,
                            make_error(Errc::not_found, "no block " + to_hex(*key) + " is cached"));
    return {};
  }
  const auto message = std::make_shared<capnp::MallocMessageBuilder>();
  fill_inspected(message->initRoot<wire::Inspected>(), block, request.getVerify());
  const auto send = [message](Connection& to, std::uint64_t to_id) {
    to.reply(to_id, [&](Connection::Builder root) {
      root.setInspected(message->getRoot<wire::Inspected>().asReader());
    });
  };
  if (!request.getVerify() || !cache.catalogue().block(block).tiers.has(Tier::disk)) {
    send(connection_, id);
    return {};
  }
  auto placements = message->getRoot<wire::Inspected>().getPlacements();
  auto on_disk = placements[placements.size() - 1];
  const auto checked = [message, on_disk, send, weak = connection_.weak_from_this(),
                        id](const Result<void>& result) mutable {
    const bool reached = result || result.error().code != Errc::unavailable;
    if (reached) on_disk.setChecked(result ? Checked::HOLDS : Checked::CORRUPT);
    if (!result) on_disk.setNote(result.error().message);
    if (const auto to = weak.lock()) send(*to, id);
  };
  if (const auto begun = cache.verify_on_disk(block, checked); !begun) {
    on_disk.setNote(begun.error().message);
    send(connection_, id);
  }
  return {};
}

}  // namespace kvtier::daemon
