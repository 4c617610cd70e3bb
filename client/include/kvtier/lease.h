// Blocks that the daemon holds for us, and copies of them to an engine's pages.
//
// Both handles are of one thread at a time, except where a function says otherwise. A handle that
// was moved away is empty, and every question to it is safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kvtier/deadline.h"
#include "kvtier/pages.h"
#include "kvtier/result.h"
#include "kvtier/stream.h"
#include "kvtier/tier.h"

namespace kvtier {

// A block of a load that did not hold.
struct BlockFault {
  std::uint32_t block = 0;  // index in the lease
  Error error;              // corrupt (proof, header), io or stale
};

// Copies in flight from leased blocks to an engine's pages. Move only. Waits on destruction as
// finish() does: for copies in memory, never for the daemon or a disk.
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

  // Those of the namespace.
  std::uint32_t layers() const noexcept;
  // After it, layer `layer` (< layers()) of all blocks() is in the pages for work on `stream`. On
  // the CPU it waits for copies in memory; on a GPU it waits for nothing, `stream` does.
  void wait_layer(std::uint32_t layer, StreamView stream = {});
  // Whether all copies have ended, so that finish() will not wait. Any thread.
  bool ended() const noexcept;
  // Waits until ended(), at most until `deadline`. Any thread.
  bool wait(Deadline deadline) const noexcept;

  // Waits for all copies (in memory; wait() first where that may take too long), then asks whether
  // the lease still held after them. Returns the leading blocks that may be used: blocks(), or 0 if
  // the lease was lost meanwhile (what was copied may be anything).
  std::uint32_t finish();
  // The same; none if the copies have not ended by `deadline`, and then they go on.
  std::optional<std::uint32_t> finish(Deadline deadline);

 private:
  friend class Lease;
  struct State;
  explicit Load(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

enum class LeaseState : std::uint8_t {
  asked,     // the daemon has not answered yet (Cache::lease_async())
  arriving,  // granted; blocks are on their way to memory
  settled,   // every granted block is in memory or has failed
  lost,      // refused, too late, or ended: Lease::error() says why
};

// A counted hold on blocks of a prefix that follow one another. Move only; released on destruction,
// at most once, which never waits. Its block 0 is the first that was asked for.
class Lease {
 public:
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  // Any thread.
  LeaseState state() const noexcept;
  // Why the lease is lost; none while it is not. What it had is stale then. Any thread.
  std::optional<Error> error() const;

  // Blocks granted: at most what was asked, perhaps 0; 0 while asked.
  std::uint32_t blocks() const noexcept;
  // The tier that block `block` was in when it was leased.
  Tier source(std::uint32_t block) const noexcept;

  // Waits until every granted block is in memory or has failed, at most until `deadline`. Returns
  // the leading blocks that are in memory; 0 once the lease is lost. Any thread.
  std::uint32_t wait_ready(Deadline deadline);
  // Since when every granted block has been in memory or has failed, or the lease has been lost:
  // wait_ready() will not wait. None while blocks are on their way. Any thread.
  std::optional<Clock::time_point> settled_at() const noexcept;

  // A descriptor to poll beside others: readable (POLLIN) from when the lease is settled or lost,
  // or the deadline of lease_async() has passed, whatever has come by then. It is the lease's and
  // goes with it; it is not to be read from. Errors: io (no descriptor left), stale (moved away).
  Result<int> event_fd();
  // `callback` is called once, at the moment at which event_fd() becomes readable: on the client's
  // session thread, or in this call where that moment has passed. It may use the lease and start
  // loads, leases and write-backs. It must return soon, since nothing else comes from the daemon
  // meanwhile; it must not wait (lease(), wait_ready(), finish(), flush()), not throw, and not drop
  // the last reference to the client. Not called once release() or the destructor has begun, except
  // where it is being called already: it owns whatever it uses. One callback a lease; another takes
  // its place.
  void on_settled(std::function<void()> callback);

  // Starts copying the leading blocks that are in memory now, at most as many as `pages` holds.
  // Waits for nothing, but reads each block's header, and copies by itself where too many loads are
  // queued. Errors: stale (lease lost), invalid (pages).
  Result<Load> load_into(const Pages& pages, StreamView stream = {});

  // Whether the daemon still holds these blocks for us. Any thread.
  bool held() const noexcept;
  // Never waits: loads under way end first, by themselves.
  void release() noexcept;

 private:
  friend class Cache;
  friend class Load;
  struct State;
  explicit Lease(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

}  // namespace kvtier
