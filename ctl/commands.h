// What kvtierctl asks the daemon. Each returns the answer as JSON, in the shape that
// docs/kvtierctl.md documents.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "ctl/json.h"
#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier::ctl {

struct Target {
  std::string socket = "/run/kvtier/kvtierd.sock";
  std::chrono::milliseconds timeout{5000};
};

// Namespaces by what is given; nothing given: all.
struct Filter {
  std::optional<NamespaceId> ns;
  std::string model;  // without its revision
  enum class Revision : std::uint8_t { any = 0, is = 1, is_not = 2 } rule = Revision::any;
  std::string revision;
  bool is_everything() const noexcept { return !ns && model.empty(); }
};

// Blocks of those namespaces; with a key that one, and those around it.
struct Selection {
  Filter in;
  std::optional<Key> key;
  enum class Around : std::uint8_t {
    block = 0,
    ancestors = 1,
    descendants = 2
  } around = Around::block;
};

// Errors of all: what the daemon answered, or as SyncSession.
Result<Json> fetch_status(const Target& target);
Result<Json> fetch_sessions(const Target& target);

enum class SortBy { none, key, index, access, size };
struct ListOptions {
  Filter in;
  TierSet tiers;             // blocks in one of these; empty: all
  std::uint64_t blocks = 0;  // at most
  SortBy sort = SortBy::none;
};
// Piece by piece, so that the daemon never works long on it: blocks that come or go meanwhile may
// or may not be in it. Sorted, it holds the first of all blocks in that order.
Result<Json> fetch_list(const Target& target, const ListOptions& options);

Result<Json> inspect(const Target& target, const Key& key, bool verify);

struct DropOptions {
  Selection what;
  TierSet tiers;  // empty: all
  bool force = false;
};
Result<Json> drop(const Target& target, const DropOptions& options);

struct PinOptions {
  Selection what;
  TierSet tiers;  // empty: all
  std::chrono::seconds lifetime{0};
};
Result<Json> pin(const Target& target, const PinOptions& options);
Result<Json> unpin(const Target& target, const Selection& what, TierSet tiers);

// To the remote tier, what came or was used within this time; 0: all.
Result<Json> push(const Target& target, const Selection& what, std::chrono::seconds used_within);

Result<Json> invalidate(const Target& target, const Filter& filter);
Result<Json> flush(const Target& target);

struct ScrubOptions {
  bool start = true;
  bool wait = false;  // until no pass is under way, however long
};
Result<Json> scrub(const Target& target, const ScrubOptions& options);

Result<Json> fetch_quotas(const Target& target);
struct QuotaChange {
  Tier tier;
  std::uint64_t bytes;  // 0: no quota
};
// All that was set before a refusal stays set.
Result<Json> set_quotas(const Target& target, const std::string& tenant,
                        const std::vector<QuotaChange>& changes);

}  // namespace kvtier::ctl
