// A client's GPU: where its engine's pages are, and what copies between them and slots.
//
// One a client; it outlives the client's leases, loads and write-backs. The engine's threads, the
// session thread and the copy thread all use it.
#pragma once

#include <functional>
#include <memory>

#include "client/session/gpu_memory.h"
#include "client/session/held_blocks.h"
#include "client/transfer/loading.h"
#include "client/transfer/page_table.h"
#include "client/transfer/write_back_job.h"

namespace kvtier::transfer {

class Gpu : public session::GpuMemory {
 public:
  // Starts copying the leading blocks of `hold` that are in memory and hold their proofs, ordered
  // after what is on `stream` now. Counts as a use of the lease, which the caller has begun.
  // `landed(first, blocks)` is called by finish() where the copy has come out well: of `blocks`
  // that landed, the load itself has promoted those before `first`. Errors: invalid (pages the GPU
  // cannot reach), io.
  using Landed = std::function<void(std::uint32_t first, std::uint32_t blocks)>;
  virtual Result<std::shared_ptr<Loading>> load(std::shared_ptr<session::HeldBlocks> hold,
                                                PageTable pages, StreamView stream,
                                                Landed landed) = 0;

  // A job for the copy thread that reads the pages after what is on `stream` now. Errors: invalid,
  // io.
  virtual Result<std::shared_ptr<WriteBackJob>> write_back(
      std::shared_ptr<session::Session> session, std::shared_ptr<session::NamespaceEntry> ns,
      std::shared_ptr<WriteBackBudget> budget, WriteBackJob::Work work, StreamView stream) = 0;

  // Copies a record from slot to slot and waits for it. False if it did not come out well.
  virtual bool copy_record(const session::SlotRef& from, const session::SlotRef& to,
                           std::size_t bytes) noexcept = 0;
};

// The GPU of this number in this process. Errors: unavailable (no such GPU, or this library was
// built without CUDA), saying the mend.
Result<std::shared_ptr<Gpu>> open_gpu(std::uint32_t cuda_device);

}  // namespace kvtier::transfer
