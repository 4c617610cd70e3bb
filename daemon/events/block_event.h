// Events as vLLM has them (its kv_events.py), and batches of them in msgpack.
//
// An event is of one namespace and one tier. Blocks that follow one another in a prefix are one
// event. To vLLM's fields come two of ours, at the end: `namespace` (hexadecimal), and `model` of
// what is stored.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier::daemon::events {

// What events say of a namespace.
struct Space {
  NamespaceId id;
  std::uint32_t block_tokens = 0;
  std::string model, adapter;
};
using SpaceRef = std::shared_ptr<const Space>;

struct BlockEvent {
  enum class Kind : std::uint8_t { stored, removed, cleared };
  Kind kind = Kind::cleared;
  Tier tier = Tier::host;
  SpaceRef space;  // null: neither it nor a model is told
  std::vector<Key> keys;
  Key parent;                 // of the first
  std::vector<Token> tokens;  // of all, or none
  std::uint32_t block_tokens = 0;
};

const char* medium_of(Tier tier) noexcept;

// [time, events, 0], the last being a rank.
std::vector<std::uint8_t> encode_batch(double unix_seconds, std::span<const BlockEvent> events,
                                       Config::BlockHashes form);

// Makes events of changes as they come, and batches of events.
class BatchMaker {
 public:
  void cleared();
  void stored(Tier tier, const SpaceRef& space, const Key& key, const Key& parent,
              std::span<const Token> tokens);
  void removed(Tier tier, const SpaceRef& space, const Key& key);
  // A batch is large enough (limits::kEventBatchBytes).
  bool full() const noexcept;
  bool empty() const noexcept { return events_.empty(); }
  // Gives the batch away and begins the next.
  std::vector<BlockEvent> take();

 private:
  std::vector<BlockEvent> events_;
  std::size_t bytes_ = 0;  // about
};

}  // namespace kvtier::daemon::events
