// Blocks on their way from an engine's pages to the cache: all at once, or layer by layer.
//
// Both handles are of one thread at a time, except where a function says otherwise. A handle that
// was moved away is empty, and every question to it is safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kvtier/deadline.h"
#include "kvtier/drop_reason.h"
#include "kvtier/result.h"
#include "kvtier/stream.h"

namespace kvtier {

// Every block that was offered is in the end one of accepted(), cached() and dropped(). Move only;
// waits on destruction as wait() does.
class WriteBack {
 public:
  WriteBack(WriteBack&&) noexcept;
  WriteBack& operator=(WriteBack&&) noexcept;
  ~WriteBack();

  // Waits until the pages are not read any more: for copies in memory, and for slots until the
  // `slots_by` that the write-back was given (or ClientOptions::slot_wait, from when it was
  // offered). Without either it waits for no slot: blocks that have none are dropped.
  void wait() noexcept;
  // The same, at most until `deadline`. Whether the pages are not read any more. Any thread.
  bool wait(Deadline deadline) noexcept;
  // Drops what has no slot now, whatever it was to wait for. Does not wait. Any thread.
  void hurry() noexcept;
  // Whether wait() would return at once. Any thread.
  bool ended() const noexcept;

  // After wait(), or once ended(): blocks that went to the cache, that were there already, and that
  // did not get there. Any thread.
  std::uint32_t accepted() const noexcept;
  std::uint32_t cached() const noexcept;
  Drops dropped() const noexcept;
  // Where all of it was refused: why. Errors invalid (pages, prefix), refused (reading only, a
  // namespace that was closed), unavailable, no_space, io.
  std::optional<Error> error() const;

 private:
  friend class Cache;
  friend class LayerStore;
  struct State;
  explicit WriteBack(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

// A write-back whose pages are filled layer by layer, as a prefill does. Nothing of it can be found
// before commit(). Move only; without commit() it leaves nothing behind: its slots go back.
//
// On the CPU a layer is copied as soon as it is handed over, beside the engine's work on the next.
// On a GPU everything is copied at commit(), after what is on the stream of the last layer() then:
// hand over all layers with one stream.
class LayerStore {
 public:
  LayerStore(LayerStore&&) noexcept;
  LayerStore& operator=(LayerStore&&) noexcept;
  // Waits for the copy of the layer that is being copied, in memory; no other is begun.
  ~LayerStore();

  // Blocks taken on: at most what was offered.
  std::uint32_t blocks() const noexcept;

  // Layer `layer` of all blocks is in the pages: now, or after what is on `stream`. Each once, in
  // any order; does not wait. From here until the WriteBack has ended, or this object is gone, the
  // engine does not touch that layer of the pages. Errors: invalid (no such layer, or handed over
  // before).
  Result<void> layer(std::uint32_t layer, StreamView stream = {});

  // Stores the blocks, once. Does not wait. Blocks are dropped as those of any write-back, and all
  // of them, with error(), where a layer is missing. This object is empty afterwards.
  WriteBack commit() noexcept;

 private:
  friend class Cache;
  struct State;
  explicit LayerStore(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

}  // namespace kvtier
