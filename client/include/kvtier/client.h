// libkvtier: how an engine keeps its KV beyond its own memory.
//
// In the order of use:
//
// clang-format off
//   auto client = kvtier::Client::start({.socket = "/run/kvtier/kvtierd.sock"}).value();
//   auto cache  = client->open(ns).value();                // a namespace: model, layout, format, tenant
//   Match hit   = cache->match(tokens);                    // no system call, no pin
//   auto lease  = cache->lease(tokens, hit.blocks, deadline).value();  // pins; starts disk reads
//   auto ready  = lease.wait_ready(deadline);              // leading blocks now in memory
//   auto load   = lease.load_into(pages, stream).value();  // checks proofs, copies layer by layer
//   load.wait_layer(0, stream);                            // ... attend to layer 0 ...
//   auto good   = load.finish();                           // leading blocks that held; recompute the rest
//   auto write  = cache->write_back(tokens, first_block, pages, stream);  // never blocks
// clang-format on
//
// The engine never waits on the daemon beyond a deadline it passed. With no daemon, everything here
// is a miss; the client reconnects by itself. All functions are thread safe unless they say
// otherwise; none throws.
//
// A client does not go through fork(): its threads stay behind. In the child everything of it is a
// miss (match finds nothing, leases are refused, loads end with no block, write-backs are dropped),
// destroying it does nothing, and the parent's goes on undisturbed. Start a client in the child.
// That a child was made by a bare clone() is not noticed.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvtier/deadline.h"
#include "kvtier/dtype.h"
#include "kvtier/hint.h"
#include "kvtier/key.h"
#include "kvtier/match.h"
#include "kvtier/namespace.h"
#include "kvtier/page_pool.h"
#include "kvtier/prefix.h"
#include "kvtier/record_layout.h"
#include "kvtier/result.h"
#include "kvtier/stream.h"
#include "kvtier/tier.h"

namespace kvtier {

// The engine's memory for `blocks` blocks, owned by the engine and untouched by it while a load or
// a write-back that names it is in progress. Exactly one of the three forms:
struct Pages {
  // Records as stored (layout().record_bytes each), for an engine that attends to records directly.
  std::span<std::byte* const> records{};
  // With records, in a load: a block that lies in the device tier of the client's own GPU is not
  // copied; Load::records() says where it is.
  bool in_place = false;
  // Or pages of a pool by their numbers, converted on the way: one after the other those of a
  // block, then of the next. A block has block_tokens / pool->page_tokens() of them.
  const PagePool* pool = nullptr;
  std::span<const std::uint32_t> numbers{};
  // Or K and V pages, converted on the way: [layer * blocks + block] ->
  // [kv_heads][block_tokens][head_dim], of `type` (f32, f16 or bf16). For namespaces whose layers
  // are alike; without V v_pages is empty.
  std::span<void* const> k_pages{};
  std::span<void* const> v_pages{};
  DType type = DType::f32;
};

// Blocks first, first + 1, ..., end - 1 of a prefix.
struct BlockRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};

// A block of a load that did not hold.
struct BlockFault {
  std::uint32_t block = 0;  // index in the lease
  Error error;              // corrupt (proof, header), io or stale
};

// Copies in flight from leased blocks to an engine's pages. Move only; waits for the copies on
// destruction.
class Load {
 public:
  Load(Load&&) noexcept;
  Load& operator=(Load&&) noexcept;
  ~Load();

  // Leading blocks whose header and proof held; only these are copied.
  std::uint32_t blocks() const noexcept;
  std::span<const BlockFault> faults() const noexcept;
  // For pages of records: where each of blocks() is to be attended to. Its page, or, in place, its
  // slot of the device tier, good as long as the lease is held.
  std::span<std::byte* const> records() const noexcept;

  // After it, layer `layer` of all blocks() is in the pages for work on `stream`.
  void wait_layer(std::uint32_t layer, StreamView stream = {});
  // Whether all copies have ended, so that finish() will not wait.
  bool ended() const noexcept;

  // Waits for all copies, then asks whether the lease still held after them. Returns the leading
  // blocks that may be used: blocks(), or 0 if the lease was lost meanwhile (what was copied may be
  // anything).
  std::uint32_t finish();

 private:
  friend class Lease;
  struct State;
  explicit Load(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

// A counted hold on blocks of a prefix that follow one another. Move only; released on destruction,
// at most once. Its block 0 is the first that was asked for.
class Lease {
 public:
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  // Blocks granted: at most what was asked, perhaps 0.
  std::uint32_t blocks() const noexcept;
  // The tier that block `block` was in when it was leased.
  Tier source(std::uint32_t block) const noexcept;

  // Waits until every granted block is in memory or has failed, at most until `deadline`. Returns
  // the leading blocks that are in memory; 0 once the lease is lost.
  std::uint32_t wait_ready(Deadline deadline);
  // Since when every granted block has been in memory or has failed, or the lease has been lost:
  // wait_ready() will not wait. None while blocks are on their way.
  std::optional<Clock::time_point> settled_at() const noexcept;

  // Starts copying the leading blocks that are in memory now, at most as many as `pages` holds.
  // Errors: stale (lease lost), invalid (pages).
  Result<Load> load_into(const Pages& pages, StreamView stream = {});

  // Whether the daemon still holds these blocks for us.
  bool held() const noexcept;
  void release() noexcept;

 private:
  friend class Cache;
  friend class Load;
  struct State;
  explicit Lease(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

// Blocks on their way from an engine's pages to the cache. Move only; waits on destruction.
class WriteBack {
 public:
  WriteBack(WriteBack&&) noexcept;
  WriteBack& operator=(WriteBack&&) noexcept;
  ~WriteBack();

  // Waits until the pages are not read any more. Waits for copies in memory, never for the daemon.
  void wait() noexcept;
  // Whether wait() would return at once. It may take longer to get there than with wait(), which
  // gives up what has no slot yet.
  bool ended() const noexcept;
  // After wait(), or once ended(): how many blocks went to the cache; the others were dropped and
  // counted.
  std::uint32_t accepted() const noexcept;

 private:
  friend class Cache;
  struct State;
  explicit WriteBack(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

// One namespace as one engine uses it.
class Cache {
 public:
  virtual ~Cache() = default;

  virtual const Namespace& ns() const noexcept = 0;
  virtual const NamespaceId& id() const noexcept = 0;
  virtual const RecordLayout& layout() const noexcept = 0;

  // How many leading blocks of a prompt are cached, and where: a look into the shared directory,
  // advisory. Never the block of the last token.
  virtual Match match(std::span<const Token> tokens) const noexcept = 0;
  virtual Match match(const Prefix& prefix) const noexcept = 0;
  // Of no tokens, in this namespace.
  Prefix prefix() const { return Prefix(id(), ns()); }

  // Holds the blocks of `tokens` in `range` (range.end <= blocks_matchable()) up to the first that
  // is gone, and starts bringing those on disk to memory. From block 0 on, call it once a request,
  // with no blocks for a miss: it is what counts lookups, hits and misses. A range that begins
  // later counts no more than its own blocks. Errors: deadline, unavailable, refused.
  virtual Result<Lease> lease(std::span<const Token> tokens, BlockRange range,
                              Deadline deadline) = 0;
  // `prefix` is of this namespace, and so in write_back(). Errors: invalid, too.
  virtual Result<Lease> lease(const Prefix& prefix, BlockRange range, Deadline deadline) = 0;
  // The first `blocks` blocks.
  Result<Lease> lease(std::span<const Token> tokens, std::uint32_t blocks, Deadline deadline);

  // Offers complete blocks first_block, first_block + 1, ... (as many as `pages` holds) of
  // `tokens`, which begins at the prefix's first token and covers them. Blocks already cached are
  // skipped; with no free slot, no daemon or too much queued, blocks are dropped and counted.
  virtual WriteBack write_back(std::span<const Token> tokens, std::uint32_t first_block,
                               const Pages& pages, StreamView stream = {}) noexcept = 0;
  virtual WriteBack write_back(const Prefix& prefix, std::uint32_t first_block, const Pages& pages,
                               StreamView stream = {}) noexcept = 0;

  // Says what is known of the time ahead of blocks of `prefix` (hint.h): of the first 16,384 in
  // `range`, or, of an `ended` one, of the last 4,096. Never waits, and is never a promise: what
  // came of it nobody is told, and a daemon that knows no hints hears none. To keep a block without
  // those before it is of no use. Errors: invalid (a prefix of another namespace, a tier or a
  // priority that the hint may not have), no_space (too many wait to be sent), unavailable (no
  // connection, closed, or forked).
  virtual Result<void> hint(const Prefix& prefix, BlockRange range, const Hint& hint) noexcept = 0;

 protected:
  static Lease make_lease(std::shared_ptr<Lease::State> state) noexcept;
  static WriteBack make_write_back(std::shared_ptr<WriteBack::State> state) noexcept;
};

struct ClientOptions {
  // The GPU on which this engine's pages and streams are, by its CUDA number in this process; none:
  // they are in host memory. Errors of start(): unavailable where there is no such GPU or this
  // library was built without CUDA.
  std::optional<std::uint32_t> cuda_device = std::nullopt;
  std::string socket = "/run/kvtier/kvtierd.sock";
  std::string name = "client";     // shown by kvtierctl
  std::uint32_t slots_ahead = 64;  // reserved slots kept at hand, per namespace and tier
  std::uint32_t write_backs_queued_max = 1024;         // blocks
  std::chrono::milliseconds reconnect_delay_max{500};  // between attempts, doubling from 10 ms
  // Asks for no more than reading: the cache's memory is mapped so that nothing in this process can
  // write to it, and write-backs are dropped and counted. The daemon may decide so by itself.
  bool read_only = false;
  // Loads check the checksums of payloads that have one; those of this client's write-backs do, and
  // those that went to disk. It finds accidents, not a writer who means harm (SECURITY.md), and
  // costs a pass over the bytes. Errors of start(): invalid, with a cuda_device.
  bool verify_loads = false;
};

struct ClientStats {
  std::uint64_t blocks_looked_up = 0;        // = sum(hits) + misses
  std::array<std::uint64_t, kTiers> hits{};  // blocks leased, by tier
  std::uint64_t misses = 0;
  std::uint64_t faults = 0;  // leased blocks that did not hold
  std::uint64_t leases_lost = 0;
  std::uint64_t blocks_written = 0;
  std::uint64_t blocks_dropped = 0;
  std::uint64_t deadlines_missed = 0;
  std::uint64_t connects = 0;
};

// The connection to a daemon. Owns one session thread and one copy thread.
class Client {
 public:
  // Starts connecting and returns at once. Errors: invalid (options).
  static Result<std::shared_ptr<Client>> start(ClientOptions options);

  virtual ~Client() = default;

  virtual bool connected() const noexcept = 0;
  // Errors: deadline, with the reason of the last failed attempt; unavailable after fork().
  virtual Result<void> wait_connected(Deadline deadline) = 0;

  // Errors: invalid (the namespace), unavailable (after fork()).
  virtual Result<std::shared_ptr<Cache>> open(const Namespace& ns) = 0;

  // Waits until everything written back before is committed and, where the disk tier admits it,
  // durable. Errors: deadline, unavailable.
  virtual Result<void> flush(Deadline deadline) = 0;

  virtual ClientStats stats() const noexcept = 0;
};

}  // namespace kvtier
