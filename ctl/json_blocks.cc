// Namespaces, blocks and what is done to them, as JSON.
#include "ctl/json.h"
#include "kvtier/namespace.h"
#include "kvtier/tier.h"

namespace kvtier::ctl {
namespace {

Json per_tier(capnp::List<std::uint64_t>::Reader numbers) {
  Json json = Json::object();
  for (unsigned t = 0; t < numbers.size(); ++t)
    json[tier_name(static_cast<std::uint8_t>(t))] = numbers[t];
  return json;
}

const char* name_of(wire::Inspected::Checked checked) {
  switch (checked) {
    case wire::Inspected::Checked::HOLDS:
      return "holds";
    case wire::Inspected::Checked::CORRUPT:
      return "corrupt";
    case wire::Inspected::Checked::UNSEALED:
      return "unsealed";
    default:
      return "not checked";
  }
}

Json to_json(wire::Inspected::Placement::Reader placement) {
  Json json;
  const bool on_disk = placement.getTier() == index_of(Tier::disk);
  json["tier"] = tier_name(placement.getTier());
  json["where"] = text_of(placement.getWhere());
  json["online"] = placement.getOnline();
  json[on_disk ? "segment" : "extent"] = placement.getContainer();
  json["slot"] = placement.getSlot();
  json["leases"] = placement.getHolds();
  json["pinned_ms"] = placement.getPinnedMs();
  json["kept_ms"] = placement.getKeptMs();
  json["priority"] = placement.getPriority();
  json["demoted"] = placement.getDemoted();
  json["checksum"] = name_of(placement.getChecked());
  json["note"] = text_of(placement.getNote());
  return json;
}

}  // namespace

Json to_json(wire::ListReply::Namespace::Reader entry) {
  Json json;
  json["id"] = hex(entry.getId());
  json["blocks"] = entry.getBlocks();
  json["bytes"] = per_tier(entry.getBytes());
  json["hits"] = per_tier(entry.getHits());
  json["invalidated"] = entry.getClosed();
  json["sessions"] = entry.getSessions();
  const auto encoded = entry.getEncoded();
  if (encoded.size() == 0) {
    json["error"] = "not opened by any client since its records were found";
    return json;
  }
  const auto ns =
      decode_namespace({reinterpret_cast<const std::byte*>(encoded.begin()), encoded.size()});
  if (!ns) {
    json["error"] = ns.error().message;
    return json;
  }
  json["model"] = ns->model;
  json["adapter"] = ns->adapter;
  json["tenant"] = text_of(entry.getTenant());
  json["salted"] = entry.getSalted();
  json["layers"] = ns->layers;
  json["kv_heads"] = ns->kv_heads;
  json["head_dim_k"] = ns->head_dim_k;
  json["head_dim_v"] = ns->head_dim_v;
  json["block_tokens"] = ns->block_tokens;
  json["format"] = name(ns->format);
  json["rank"] = ns->rank;
  json["ranks"] = ns->ranks;
  json["positions"] = ns->positions;
  return json;
}

Json to_json(wire::ListReply::Block::Reader block) {
  Json json;
  json["key"] = hex(block.getKey());
  json["namespace"] = hex(block.getNs());
  json["block_index"] = block.getBlockIndex();
  json["tiers"] = tiers_of(block.getTiers());
  json["leases"] = block.getLeases();
  json["record_bytes"] = block.getRecordBytes();
  json["last_access"] = block.getLastAccess();
  json["pinned"] = tiers_of(block.getPinned());
  json["kept"] = tiers_of(block.getKept());
  json["demoted"] = tiers_of(block.getDemoted());
  json["priority"] = block.getPriority();
  return json;
}

void append(Json& list, wire::ListReply::Reader piece) {
  for (const auto entry : piece.getNamespaces()) list["namespaces"].push_back(to_json(entry));
  for (const auto block : piece.getBlocks()) list["blocks"].push_back(to_json(block));
}

Json to_json(wire::Inspected::Reader inspected) {
  Json json = to_json(inspected.getBlock());
  json["namespace"] = to_json(inspected.getNamespace());
  json["parent"] = hex(inspected.getParent());
  json["parent_cached"] = inspected.getParentCached();
  json["accesses_since"] = inspected.getClock() - inspected.getBlock().getLastAccess();
  json["loading"] = inspected.getLoading();
  json["write_queued"] = inspected.getWriteQueued();
  json["doomed"] = inspected.getDoomed();
  json["placements"] = Json::array();
  for (const auto placement : inspected.getPlacements())
    json["placements"].push_back(to_json(placement));
  return json;
}

Json to_json(wire::Removed::Reader removed) {
  Json json;
  json["blocks_dropped"] = removed.getBlocks();
  json["blocks_in_use"] = removed.getInUse();
  json["blocks_pinned"] = removed.getPinned();
  return json;
}

Json to_json(wire::Invalidated::Reader invalidated) {
  Json json;
  json["namespaces"] = Json::array();
  for (const auto id : invalidated.getNamespaces()) json["namespaces"].push_back(hex(id));
  json["blocks_dropped"] = invalidated.getRemoved().getBlocks();
  json["blocks_in_use"] = invalidated.getRemoved().getInUse();
  json["sessions_told"] = invalidated.getSessions();
  json["disks_offline"] = Json::array();
  for (const auto disk : invalidated.getDisksOffline())
    json["disks_offline"].push_back(text_of(disk));
  return json;
}

Json to_json(wire::SessionInfo::Reader session) {
  Json json;
  json["id"] = session.getId();
  json["name"] = text_of(session.getName());
  json["pid"] = session.getPid();
  json["age_ms"] = session.getAgeMs();
  json["silent_ms"] = session.getSilentMs();
  json["leases"] = session.getLeases();
  json["blocks_leased"] = session.getBlocksLeased();
  json["slots_reserved"] = session.getSlotsReserved();
  json["namespaces"] = session.getNamespaces();
  return json;
}

}  // namespace kvtier::ctl
