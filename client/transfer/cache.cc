#include "client/transfer/cache.h"

#include <algorithm>
#include <string>

#include "client/session/limits.h"
#include "client/transfer/load_job.h"
#include "client/transfer/promotion_job.h"
#include "core/wire/prefix_match.h"

namespace kvtier::transfer {
namespace {

using session::Counters;
using session::HeldBlocks;

// The states are private to the public handles; only what makes a handle knows their type.
template <class Handle, class State, class... Parts>
Handle make_handle(Handle (*make)(std::shared_ptr<State>) noexcept, Parts&&... parts) {
  return make(std::make_shared<State>(State{std::forward<Parts>(parts)...}));
}

class CacheImpl final : public Cache {
 public:
  CacheImpl(Parts parts, std::shared_ptr<session::NamespaceEntry> ns)
      : parts_(std::move(parts)), ns_(std::move(ns)) {
    if (ns_->users++ == 0) parts_.session->refill(ns_);
  }
  ~CacheImpl() override {
    if (forked()) {
      parts_.keep_for_ever();
      ForkMark::keep(ns_);
      return;
    }
    if (--ns_->users == 0) parts_.session->give_back_if_unused(ns_);
  }

  const Namespace& ns() const noexcept override { return ns_->ns; }
  const NamespaceId& id() const noexcept override { return ns_->id; }
  const RecordLayout& layout() const noexcept override { return ns_->layout; }

  Match match(std::span<const Token> tokens) const noexcept override {
    if (forked() || ns_->invalidated) return {};
    return parts_.session->directory().read([&](const DirectoryView* view) {
      return view == nullptr ? Match{}
                             : match_prefix(*view, ns_->id, ns_->layout.block_tokens, tokens);
    });
  }

  Match match(const Prefix& prefix) const noexcept override {
    if (forked() || ns_->invalidated || prefix.ns() != ns_->id) return {};
    return parts_.session->directory().read([&](const DirectoryView* view) {
      return view == nullptr ? Match{}
                             : match_keys(*view, prefix.keys().first(prefix.blocks_matchable()));
    });
  }

  using Cache::lease;
  Result<Lease> lease(std::span<const Token> tokens, BlockRange range, Deadline deadline) override {
    const std::uint32_t block_tokens = ns_->layout.block_tokens;
    const auto matchable =
        static_cast<std::uint32_t>(blocks_matchable(tokens.size(), block_tokens));
    const std::size_t hashed = std::min({std::size_t{range.end}, std::size_t{matchable},
                                         std::size_t{range.first} + wire::kLeaseBlocksMax});
    return lease_of(prefix_of(tokens.first(hashed * block_tokens)), matchable, range, deadline);
  }
  Result<Lease> lease(const Prefix& prefix, BlockRange range, Deadline deadline) override {
    if (prefix.ns() != ns_->id)
      return make_error(Errc::invalid, "the prefix is of another namespace than this cache");
    return lease_of(prefix, prefix.blocks_matchable(), range, deadline);
  }

  WriteBack write_back(std::span<const Token> tokens, std::uint32_t first_block, const Pages& pages,
                       StreamView stream) noexcept override {
    return write_back(prefix_of(tokens), first_block, pages, stream);
  }
  WriteBack write_back(const Prefix& prefix, std::uint32_t first_block, const Pages& pages,
                       StreamView stream) noexcept override {
    if (forked()) return make_handle(&CacheImpl::make_write_back, nullptr, nullptr);
    auto job = queue_write_back(prefix, first_block, pages, stream);
    return make_handle(&CacheImpl::make_write_back, std::move(job), parts_.copies);
  }

  Result<void> hint(const Prefix& prefix, BlockRange range, const Hint& hint) noexcept override {
    if (forked()) {
      return make_error(Errc::unavailable,
                        "this cache is of the process that this one was forked from");
    }
    if (prefix.ns() != ns_->id)
      return make_error(Errc::invalid, "the prefix is of another namespace than this cache");
    if (hint.tier == Tier::disk || hint.priority > kHintPriorityMax ||
        static_cast<std::size_t>(hint.kind) >= kHintKinds) {
      return make_error(Errc::invalid,
                        "a hint is of the device or the host tier, and its priority "
                        "at most " +
                            std::to_string(kHintPriorityMax));
    }
    std::uint32_t end = std::min(range.end, prefix.blocks());
    std::uint32_t first = std::min(range.first, end);
    if (hint.kind == HintKind::ended) {
      first = std::max(first, end - std::min(end, wire::kHintBlocksMax));
    } else {
      end = std::min(end, first + wire::kLeaseBlocksMax);
    }
    if (first == end) return {};
    const auto keys = prefix.keys().subspan(first, end - first);
    return parts_.session->hint(ns_, {keys.begin(), keys.end()}, hint);
  }

 private:
  bool forked() const noexcept { return parts_.born.forked(); }

  Prefix prefix_of(std::span<const Token> tokens) const {
    Prefix prefix(ns_->id, ns_->ns);
    (void)prefix.append(tokens);  // refused where blocks are named by digests: then of no block
    return prefix;
  }

  // Of `matchable` blocks `prefix` has those that are asked for.
  Result<Lease> lease_of(const Prefix& prefix, std::uint32_t matchable, BlockRange range,
                         Deadline deadline) {
    if (forked()) {
      return make_error(Errc::unavailable,
                        "this cache is of the process that this one was forked from");
    }
    const std::uint32_t end = std::min({range.end, matchable, prefix.blocks()});
    const std::uint32_t first = std::min(range.first, end);
    const std::uint32_t wanted =
        std::min<std::uint32_t>(end - first, static_cast<std::uint32_t>(wire::kLeaseBlocksMax));
    const auto keys = prefix.keys().subspan(first, wanted);
    const std::uint32_t looked_up = range.first == 0 ? matchable : wanted;
    auto hold = std::make_shared<HeldBlocks>(
        parts_.session, ns_, first, prefix.parent(first), std::vector(keys.begin(), keys.end()),
        prefix.proofs().slice(first, first + wanted), looked_up);
    Result<void> granted;
    if (wanted > 0) {
      granted = parts_.session->lease(hold, deadline);
    } else {
      ns_->missed += looked_up;
    }
    count(*hold, looked_up, granted.has_value());
    if (!granted) return granted.error();
    return make_handle(&CacheImpl::make_lease, std::move(hold), parts_.copies, parts_.gpu);
  }

  void count(const HeldBlocks& hold, std::size_t looked_up, bool granted) {
    Counters& counters = parts_.session->counters();
    std::size_t misses = looked_up;
    if (granted) {
      const auto sources = hold.sources();
      for (std::size_t i = 0; i < kTiers; ++i) Counters::add(counters.hits[i], sources[i]);
      misses -= hold.blocks();
    }
    Counters::add(counters.looked_up, looked_up);
    Counters::add(counters.misses, misses);
  }

  std::shared_ptr<WriteBackJob> queue_write_back(const Prefix& prefix, std::uint32_t first_block,
                                                 const Pages& pages, StreamView stream) {
    auto table = PageTable::of(pages, *ns_, stream, parts_.gpu != nullptr);
    const std::size_t after_first =
        prefix.blocks() > first_block ? prefix.blocks() - first_block : 0;
    if (!table || prefix.ns() != ns_->id) {
      drop(std::min<std::size_t>(after_first, PageTable::blocks_of(pages, *ns_)),
           DropReason::failed);
      return nullptr;
    }
    WriteBackJob::Work work;
    const auto offered =
        static_cast<std::uint32_t>(std::min<std::size_t>(after_first, table->blocks()));
    if (parts_.session->read_only()) {
      drop(offered, DropReason::failed);
      return nullptr;
    }
    work.first_block = first_block;
    work.blocks = ns_->invalidated ? 0 : parts_.budget->take(offered);
    drop(offered - work.blocks, DropReason::queue_full);
    if (work.blocks == 0) return nullptr;
    const auto keys = prefix.keys().subspan(first_block, work.blocks);
    work.before = prefix.parent(first_block);
    work.keys.assign(keys.begin(), keys.end());
    work.proofs = prefix.proofs().slice(first_block, first_block + work.blocks);
    work.pages = std::move(*table);
    parts_.session->refill(ns_);
    auto job = make_write_back_job(std::move(work), stream);
    if (!job) return nullptr;
    if (!parts_.copies->push(CopyQueue::Priority::write_back, job, session::kWriteBacksQueuedMax)) {
      job->abandon();
    }
    return job;
  }

  // Null, with its blocks dropped, where the GPU refuses.
  std::shared_ptr<WriteBackJob> make_write_back_job(WriteBackJob::Work work, StreamView stream) {
    if (!parts_.gpu) {
      return std::make_shared<HostWriteBackJob>(parts_.session, ns_, parts_.budget,
                                                std::move(work));
    }
    const std::uint32_t blocks = work.blocks;
    auto job = parts_.gpu->write_back(parts_.session, ns_, parts_.budget, std::move(work), stream);
    if (job) return *job;
    parts_.budget->give(blocks);
    drop(blocks, DropReason::failed);
    return nullptr;
  }

  void drop(std::size_t blocks, DropReason why) { parts_.session->counters().drop(why, blocks); }

  const Parts parts_;
  const std::shared_ptr<session::NamespaceEntry> ns_;
};

void queue_promotion(const std::shared_ptr<HeldBlocks>& hold,
                     const std::shared_ptr<CopyQueue>& copies, const std::shared_ptr<Gpu>& gpu,
                     std::uint32_t first, std::uint32_t blocks) {
  if (!PromotionJob::worthwhile(*hold, first, blocks) || !hold->begin_use()) return;
  copies->push(CopyQueue::Priority::promotion,
               std::make_shared<PromotionJob>(hold, first, blocks, gpu),
               session::kPromotionsQueuedMax);
}

Result<std::shared_ptr<Loading>> start_on_gpu(const std::shared_ptr<HeldBlocks>& hold,
                                              const std::shared_ptr<CopyQueue>& copies,
                                              const std::shared_ptr<Gpu>& gpu, PageTable pages,
                                              StreamView stream) {
  auto load = gpu->load(hold, std::move(pages), stream,
                        [hold, copies, gpu](std::uint32_t first, std::uint32_t blocks) {
                          queue_promotion(hold, copies, gpu, first, blocks);
                        });
  if (!load) hold->end_use();
  return load;
}

}  // namespace

std::shared_ptr<Cache> make_cache(Parts parts, std::shared_ptr<session::NamespaceEntry> ns) {
  return std::make_shared<CacheImpl>(std::move(parts), std::move(ns));
}

Result<std::shared_ptr<Loading>> start_load(const std::shared_ptr<HeldBlocks>& hold,
                                            const std::shared_ptr<CopyQueue>& copies,
                                            const std::shared_ptr<Gpu>& gpu, const Pages& pages,
                                            StreamView stream) {
  auto table = PageTable::of(pages, hold->ns(), stream, gpu != nullptr);
  if (!table) return table.error();
  if (!hold->held() || !hold->begin_use()) {
    if (!hold->alive()) hold->note_loss();
    return make_error(Errc::stale, "the lease is no longer held");
  }
  if (gpu) return start_on_gpu(hold, copies, gpu, std::move(*table), stream);
  // Not the job itself: it would keep itself alive.
  const auto blocks = std::make_shared<std::uint32_t>(0);
  auto job = std::make_shared<LoadJob>(hold, std::move(*table), [hold, copies, blocks] {
    queue_promotion(hold, copies, nullptr, 0, *blocks);
  });
  *blocks = job->blocks();
  if (*blocks == 0 || copies->push(CopyQueue::Priority::load, job, session::kLoadsQueuedMax))
    return std::shared_ptr<Loading>(std::move(job));
  // The queue is full, or the client is gone and finish() will say so.
  while (job->step() != CopyJob::Step::done) {
  }
  return std::shared_ptr<Loading>(std::move(job));
}

}  // namespace kvtier::transfer
