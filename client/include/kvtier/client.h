// libkvtier: how an engine keeps its KV beyond its own memory.
//
// In the order of use:
//
// clang-format off
//   auto client = kvtier::Client::start({.socket = "/run/kvtier/kvtierd.sock"}).value();
//   auto cache  = client->open(ns).value();                // a namespace: model, layout, format, tenant
//   auto prefix = cache->prefix();                         // grows with its sequence
//   prefix.append(tokens);
//   Match hit   = cache->match(prefix);                    // no system call, no pin
//   auto lease  = cache->lease(prefix, {0, hit.blocks}, deadline).value();  // pins; starts disk reads
//   auto ready  = lease.wait_ready(deadline);              // leading blocks now in memory
//   auto load   = lease.load_into(pages, stream).value();  // checks proofs, copies layer by layer
//   load.wait_layer(0, stream);                            // ... attend to layer 0 ...
//   auto good   = load.finish();                           // leading blocks that held; recompute the rest
//   auto write  = cache->write_back(prefix, first_block, pages, stream);  // never blocks
// clang-format on
//
// Waiting. With no daemon, everything here is a miss; the client reconnects by itself. What waits
// for the daemon takes a deadline. What takes none waits for nothing, or for copies in memory, and
// says so. Destructors: Load and WriteBack wait as their own wait does, LayerStore for the layer
// being copied, Lease and Cache for nothing; the Client ends its two threads, after the step of a
// copy that they are at and half a second at most for slots to hand back (with a GPU, after what
// the driver is at).
//
// Threads. Client and Cache may be used by any number of threads at once. The handles (Lease, Load,
// WriteBack, LayerStore), a Prefix and a PagePool are used by one thread at a time, but for the
// functions that say "any thread", which may run beside each other and beside one other; none may
// run while the handle is moved or destroyed. Handles may outlive their Cache and their Client.
// None of it throws. Callbacks come on the session thread (Lease::on_settled) or on any (LogSink).
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

#include "kvtier/deadline.h"
#include "kvtier/drop_reason.h"
#include "kvtier/hint.h"
#include "kvtier/key.h"
#include "kvtier/lease.h"
#include "kvtier/log.h"
#include "kvtier/match.h"
#include "kvtier/namespace.h"
#include "kvtier/pages.h"
#include "kvtier/prefix.h"
#include "kvtier/record_layout.h"
#include "kvtier/result.h"
#include "kvtier/stream.h"
#include "kvtier/tier.h"
#include "kvtier/write_back.h"

namespace kvtier {

// One namespace as one engine uses it.
class Cache {
 public:
  virtual ~Cache() = default;

  virtual const Namespace& ns() const noexcept = 0;
  virtual const NamespaceId& id() const noexcept = 0;
  virtual const RecordLayout& layout() const noexcept = 0;

  // Whether the daemon has opened the namespace. Errors: unavailable (not connected, saying why, or
  // not answered yet); refused and others as the daemon or the connection said, for good or until
  // something is changed there. All else here is a miss meanwhile.
  virtual Result<void> state() const = 0;
  // Waits until it is open, or refused. Errors: as state(), and deadline.
  virtual Result<void> wait_open(Deadline deadline) = 0;

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

  // The same without waiting: the lease is `asked` at first, and event_fd() or on_settled() tell
  // when it is settled or lost. With `deadline` they tell as well: a lease that was not granted by
  // then is lost, and of one that was granted the leading blocks that have come can be loaded.
  // Errors: invalid, unavailable (client closed, or forked).
  virtual Result<Lease> lease_async(const Prefix& prefix, BlockRange range, Deadline deadline) = 0;

  // Offers complete blocks first_block, first_block + 1, ... (as many as `pages` holds) of
  // `tokens`, which begins at the prefix's first token and covers them. Blocks already cached are
  // skipped; with no daemon or too much queued, blocks are dropped and counted
  // (WriteBack::dropped()). A block without a free slot waits for one until `slots_by` (none given:
  // ClientOptions::slot_wait from now), and other write-backs of this client wait behind it.
  virtual WriteBack write_back(std::span<const Token> tokens, std::uint32_t first_block,
                               const Pages& pages, StreamView stream = {},
                               std::optional<Deadline> slots_by = {}) noexcept = 0;
  virtual WriteBack write_back(const Prefix& prefix, std::uint32_t first_block, const Pages& pages,
                               StreamView stream = {},
                               std::optional<Deadline> slots_by = {}) noexcept = 0;

  // The same layer by layer. Errors: invalid (pages, prefix), refused (reading only, or the
  // namespace is closed), unavailable (no connection, client closed, or forked), no_space (too much
  // queued).
  virtual Result<LayerStore> begin_store(const Prefix& prefix, std::uint32_t first_block,
                                         const Pages& pages,
                                         std::optional<Deadline> slots_by = {}) = 0;

  // Says what is known of the time ahead of blocks of `prefix` (hint.h): of the first 16,384 in
  // `range`, or, of an `ended` one, of the last 4,096. Never waits, and is never a promise: what
  // came of it nobody is told, and a daemon that knows no hints hears none. To keep a block without
  // those before it is of no use. Errors: invalid (a prefix of another namespace, a tier or a
  // priority that the hint may not have), no_space (too many wait to be sent), unavailable (no
  // connection, closed, or forked).
  virtual Result<void> hint(const Prefix& prefix, BlockRange range, const Hint& hint) noexcept = 0;

  // Whether look_up() may find more than match(): the daemon has a remote tier. No system call.
  virtual bool looks_further() const noexcept { return false; }
  // match(), once the daemon has asked its remote tier for what it does not know of `prefix`, which
  // takes it some milliseconds at most ([remote] lookup_timeout_ms). Before a lease of a prompt of
  // which match() has not all. Waits until `deadline` at most; for nothing where the daemon has no
  // remote tier, or knows all of it. What could not be asked is a miss.
  virtual Match look_up(const Prefix& prefix, Deadline deadline) noexcept {
    (void)deadline;
    return match(prefix);
  }

 protected:
  static Lease make_lease(std::shared_ptr<Lease::State> state) noexcept;
  static WriteBack make_write_back(std::shared_ptr<WriteBack::State> state) noexcept;
  static LayerStore make_layer_store(std::shared_ptr<LayerStore::State> state) noexcept;
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
  // How long a write-back waits for slots where the daemon has none free yet, as while a tier still
  // grows; its own `slots_by` comes first. 0: for none, but for 50 ms at most beside the engine,
  // which ends when the engine waits for its pages. At most an hour.
  std::chrono::milliseconds slot_wait{0};
  // What is logged, and to whom; empty: nothing, to nobody.
  LogSink log = {};
  LogLevel log_level = LogLevel::info;
};

struct ClientStats {
  std::uint64_t blocks_looked_up = 0;        // = sum(hits) + remote_hits() + misses
  std::array<std::uint64_t, kTiers> hits{};  // blocks leased, by tier; the remote one's: below
  std::uint64_t misses = 0;
  std::uint64_t faults = 0;  // leased blocks that did not hold
  std::uint64_t leases_lost = 0;
  std::uint64_t blocks_written = 0;
  std::uint64_t blocks_dropped = 0;
  Drops dropped;  // of those, by reason
  std::uint64_t deadlines_missed = 0;
  std::uint64_t connects = 0;

  // Blocks leased from the remote tier. Counts that change meanwhile may make it 0.
  std::uint64_t remote_hits() const noexcept {
    const std::uint64_t others = hits[0] + hits[1] + hits[2] + misses;
    return blocks_looked_up > others ? blocks_looked_up - others : 0;
  }
};

// The connection to a daemon. Owns one session thread and one copy thread.
class Client {
 public:
  // Starts connecting and returns at once (with a GPU, once its driver is ready). Errors: invalid
  // (options), unavailable (GPU), io.
  static Result<std::shared_ptr<Client>> start(ClientOptions options);

  virtual ~Client() = default;

  virtual bool connected() const noexcept = 0;
  // Errors: deadline, with the reason of the last failed attempt; unavailable after fork().
  virtual Result<void> wait_connected(Deadline deadline) = 0;

  // Opens it in the background; Cache::state() says what came of it. Errors: invalid (the
  // namespace), unavailable (after fork()).
  virtual Result<std::shared_ptr<Cache>> open(const Namespace& ns) = 0;
  // Waits until the daemon has opened it. Errors: as Cache::wait_open(), too.
  Result<std::shared_ptr<Cache>> open(const Namespace& ns, Deadline deadline);

  // Waits until everything written back before is committed and, where the disk tier admits it,
  // durable. Errors: deadline, unavailable.
  virtual Result<void> flush(Deadline deadline) = 0;

  virtual ClientStats stats() const noexcept = 0;
};

}  // namespace kvtier
