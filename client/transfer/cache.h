// One namespace as one engine uses it: matching, leasing and writing back.
#pragma once

#include <memory>

#include "client/session/session.h"
#include "client/transfer/copy_queue.h"
#include "client/transfer/gpu.h"
#include "client/transfer/layer_store.h"
#include "client/transfer/loading.h"
#include "client/transfer/write_back_job.h"
#include "core/base/fork_mark.h"

namespace kvtier::transfer {

// What a client's objects share, and what outlives the client while they exist.
struct Parts {
  std::shared_ptr<session::Session> session;
  std::shared_ptr<CopyQueue> copies;
  std::shared_ptr<WriteBackBudget> budget;
  std::shared_ptr<Gpu> gpu;  // null: pages are in host memory
  std::chrono::milliseconds slot_wait{0};
  ForkMark born{};

  void keep_for_ever() const {
    ForkMark::keep(session);
    ForkMark::keep(copies);
    ForkMark::keep(budget);
    ForkMark::keep(gpu);
  }
};

std::shared_ptr<Cache> make_cache(Parts parts, std::shared_ptr<session::NamespaceEntry> ns);

// Copies the leading blocks of `hold`, and queues their promotion once they have landed.
// Errors: stale, invalid.
Result<std::shared_ptr<Loading>> start_load(const std::shared_ptr<session::HeldBlocks>& hold,
                                            const std::shared_ptr<CopyQueue>& copies,
                                            const std::shared_ptr<Gpu>& gpu, const Pages& pages,
                                            StreamView stream);

}  // namespace kvtier::transfer

namespace kvtier {

// The states behind the public handles. In a fork of the process that made them they are neither
// asked nor taken apart.
struct Lease::State {
  std::shared_ptr<session::HeldBlocks> hold;
  std::shared_ptr<transfer::CopyQueue> copies;
  std::shared_ptr<transfer::Gpu> gpu;
  ForkMark born{};
};
struct Load::State {
  std::shared_ptr<transfer::Loading> job;
  std::uint32_t layers = 0;
  ForkMark born{};
};
struct WriteBack::State {
  std::shared_ptr<transfer::WriteBackJob> job;  // null: nothing was taken
  std::shared_ptr<transfer::CopyQueue> copies;
  Drops refused{};  // before there was a job
  std::optional<Error> error{};
  ForkMark born{};
};
struct LayerStore::State {
  std::shared_ptr<transfer::LayerStoring> storing;
  std::shared_ptr<session::Session> session;
  std::shared_ptr<transfer::CopyQueue> copies;
  Drops refused{};
  ForkMark born{};
};

}  // namespace kvtier
