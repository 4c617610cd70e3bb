#include "daemon/events/block_event.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/limits.h"

namespace kvtier::daemon::events {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kEventBytes = 256;  // about, without its blocks
constexpr std::size_t kHashBytes = 18;    // the most
constexpr std::size_t kTokenBytes = 5;

Json hash_of(const Key& key, Config::BlockHashes form) {
  if (form == Config::BlockHashes::bytes) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(key.bytes.data());
    return Json::binary({bytes, bytes + key.bytes.size()});
  }
  // As vLLM makes a number of a digest: the last of it, read from the left.
  std::uint64_t number = 0;
  for (std::size_t i = key.bytes.size() - sizeof number; i < key.bytes.size(); ++i)
    number = number << 8 | std::to_integer<std::uint64_t>(key.bytes[i]);
  return number;
}

Json hashes_of(const BlockEvent& event, Config::BlockHashes form) {
  Json list = Json::array();
  for (const Key& key : event.keys) list.push_back(hash_of(key, form));
  return list;
}

Json to_json(const BlockEvent& event, Config::BlockHashes form) {
  Json json;
  if (event.kind == BlockEvent::Kind::cleared) {
    json["type"] = "AllBlocksCleared";
    return json;
  }
  const bool stored = event.kind == BlockEvent::Kind::stored;
  json["type"] = stored ? "BlockStored" : "BlockRemoved";
  json["block_hashes"] = hashes_of(event, form);
  if (stored) {
    json["parent_block_hash"] = event.parent.is_zero() ? Json() : hash_of(event.parent, form);
    json["token_ids"] = event.tokens;
    json["block_size"] = event.block_tokens;
    json["lora_id"] = Json();
  }
  json["medium"] = medium_of(event.tier);
  if (stored) {
    const bool adapter = event.space && !event.space->adapter.empty();
    json["lora_name"] = adapter ? Json(event.space->adapter) : Json();
  }
  if (event.space) {
    json["namespace"] = to_hex(event.space->id);
    if (stored) json["model"] = event.space->model;
  }
  return json;
}

}  // namespace

const char* medium_of(Tier tier) noexcept {
  switch (tier) {
    case Tier::device:
      return "GPU";
    case Tier::host:
      return "CPU";
    case Tier::disk:
      return "STORAGE";
    case Tier::remote:
      break;
  }
  return "REMOTE";
}

std::vector<std::uint8_t> encode_batch(double unix_seconds, std::span<const BlockEvent> events,
                                       Config::BlockHashes form) {
  Json list = Json::array();
  for (const BlockEvent& event : events) list.push_back(to_json(event, form));
  return Json::to_msgpack(Json::array({unix_seconds, std::move(list), 0}));
}

void BatchMaker::cleared() {
  events_.emplace_back();
  bytes_ += kEventBytes;
}

void BatchMaker::stored(Tier tier, const SpaceRef& space, const Key& key, const Key& parent,
                        std::span<const Token> tokens) {
  const auto goes_on = [&](const BlockEvent& last) {
    return last.kind == BlockEvent::Kind::stored && last.tier == tier && last.space == space &&
           last.keys.back() == parent && last.tokens.empty() == tokens.empty();
  };
  if (events_.empty() || !goes_on(events_.back())) {
    events_.push_back({BlockEvent::Kind::stored, tier, space, {}, parent, {}, space->block_tokens});
    bytes_ += kEventBytes;
  }
  BlockEvent& event = events_.back();
  event.keys.push_back(key);
  event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
  bytes_ += kHashBytes + tokens.size() * kTokenBytes;
}

void BatchMaker::removed(Tier tier, const SpaceRef& space, const Key& key) {
  const auto goes_on = [&](const BlockEvent& last) {
    return last.kind == BlockEvent::Kind::removed && last.tier == tier && last.space == space;
  };
  if (events_.empty() || !goes_on(events_.back())) {
    events_.push_back({BlockEvent::Kind::removed, tier, space, {}, {}, {}});
    bytes_ += kEventBytes;
  }
  events_.back().keys.push_back(key);
  bytes_ += kHashBytes;
}

bool BatchMaker::full() const noexcept {
  return bytes_ >= limits::kEventBatchBytes;
}

std::vector<BlockEvent> BatchMaker::take() {
  bytes_ = 0;
  return std::exchange(events_, {});
}

}  // namespace kvtier::daemon::events
