#include "client/transfer/cache.h"

#include <algorithm>
#include <atomic>
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

// What has come to memory of a lease that is ahead of its request; the lease ends with it.
void queue_prefetched(const std::shared_ptr<HeldBlocks>& hold,
                      const std::shared_ptr<CopyQueue>& copies, const std::shared_ptr<Gpu>& gpu) {
  std::uint32_t ready = 0;
  for (const HeldBlocks::Block& block : hold->snapshot()) {
    if (block.presence != HeldBlocks::Presence::ready) break;
    ++ready;
  }
  if (ready > 0 && PromotionJob::worthwhile(*hold, 0, ready) && hold->begin_use()) {
    auto job =
        std::make_shared<PromotionJob>(hold, 0, ready, gpu, PromotionJob::For::request_to_come);
    copies->push(CopyQueue::Priority::promotion, std::move(job), session::kPromotionsQueuedMax);
  }
  hold->release();
}

class CacheImpl final : public Cache, public std::enable_shared_from_this<CacheImpl> {
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

  Result<void> state() const override {
    if (forked()) return of_parent();
    return parts_.session->state(*ns_);
  }
  Result<void> wait_open(Deadline deadline) override {
    if (forked()) return of_parent();
    return parts_.session->wait_open(*ns_, deadline);
  }

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
    auto prefix = prefix_of(tokens.first(hashed * block_tokens));
    return lease_of(hold_of(std::move(prefix), matchable, range), deadline);
  }
  Result<Lease> lease(const Prefix& prefix, BlockRange range, Deadline deadline) override {
    if (prefix.ns() != ns_->id) return wrong_prefix();
    return lease_of(hold_of(prefix, prefix.blocks_matchable(), range), deadline);
  }

  Result<Lease> lease_async(const Prefix& prefix, BlockRange range, Deadline deadline) override {
    if (forked()) return of_parent();
    if (prefix.ns() != ns_->id) return wrong_prefix();
    auto hold = hold_of(prefix, prefix.blocks_matchable(), range);
    if (!hold->keys().empty()) {
      if (auto asked = parts_.session->lease_async(hold, deadline); !asked) return asked.error();
    } else {
      ns_->missed += hold->looked_up();
      hold->count_lookup(true);
    }
    return make_handle(&CacheImpl::make_lease, std::move(hold), parts_.copies, parts_.gpu);
  }

  WriteBack write_back(std::span<const Token> tokens, std::uint32_t first_block, const Pages& pages,
                       StreamView stream, std::optional<Deadline> slots_by) noexcept override {
    if (forked()) return forked_write_back();
    return write_back(prefix_of(tokens), first_block, pages, stream, slots_by);
  }
  WriteBack write_back(const Prefix& prefix, std::uint32_t first_block, const Pages& pages,
                       StreamView stream, std::optional<Deadline> slots_by) noexcept override {
    if (forked()) return forked_write_back();
    Offer offer = take(prefix, first_block, pages, stream, slots_by);
    std::shared_ptr<WriteBackJob> job;
    if (offer.work.blocks > 0) job = queue_write_back(offer, stream);
    return make_handle(&CacheImpl::make_write_back, std::move(job), parts_.copies, offer.refused,
                       std::move(offer.error));
  }

  Result<LayerStore> begin_store(const Prefix& prefix, std::uint32_t first_block,
                                 const Pages& pages, std::optional<Deadline> slots_by) override {
    if (forked()) return of_parent();
    if (!parts_.session->connected())
      return make_error(Errc::unavailable, "not connected to kvtierd");
    Offer offer = take(prefix, first_block, pages, {}, slots_by);
    if (offer.error) return *offer.error;
    std::shared_ptr<LayerStoring> storing;
    if (offer.work.blocks > 0) storing = layers_of(std::move(offer.work));
    return make_handle(&CacheImpl::make_layer_store, std::move(storing), parts_.session,
                       parts_.copies, offer.refused);
  }

  Result<void> hint(const Prefix& prefix, BlockRange range, const Hint& hint) noexcept override {
    if (forked()) return of_parent();
    if (prefix.ns() != ns_->id) return wrong_prefix();
    if (index_of(hint.tier) >= index_of(Tier::disk) || hint.priority > kHintPriorityMax ||
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
    const bool to_device = hint.kind == HintKind::prefetch && hint.tier == Tier::device;
    if (to_device && !parts_.session->read_only()) return prefetch_to_device(prefix, first, end);
    const auto keys = prefix.keys().subspan(first, end - first);
    return parts_.session->hint(ns_, first, {keys.begin(), keys.end()}, hint);
  }

  bool looks_further() const noexcept override { return !forked() && parts_.session->has_remote(); }
  Match look_up(const Prefix& prefix, Deadline deadline) noexcept override {
    const Match known = match(prefix);
    const std::uint32_t matchable = prefix.blocks_matchable();
    if (forked() || ns_->invalidated || prefix.ns() != ns_->id || known.blocks >= matchable ||
        known.blocks >= wire::kLeaseBlocksMax || !parts_.session->has_remote()) {
      return known;
    }
    const auto keys = prefix.keys().first(std::min<std::size_t>(matchable, wire::kLeaseBlocksMax));
    const auto asked = parts_.session->look_up(ns_, {keys.begin(), keys.end()}, deadline);
    return asked ? match(prefix) : known;
  }

 private:
  bool forked() const noexcept { return parts_.born.forked(); }

  Prefix prefix_of(std::span<const Token> tokens) const {
    Prefix prefix(ns_->id, ns_->ns);
    (void)prefix.append(tokens);  // refused where blocks are named by digests: then of no block
    return prefix;
  }

  static Error of_parent() {
    return make_error(Errc::unavailable,
                      "this cache is of the process that this one was forked from");
  }
  static Error wrong_prefix() {
    return make_error(Errc::invalid, "the prefix is of another namespace than this cache");
  }
  static WriteBack forked_write_back() {
    return make_handle(&CacheImpl::make_write_back, nullptr, nullptr, Drops{}, of_parent());
  }

  // Leased as for a request that is still to come, and promoted once they have come to memory.
  Result<void> prefetch_to_device(const Prefix& prefix, std::uint32_t first, std::uint32_t end) {
    if (prefetches_->fetch_add(1) >= session::kPrefetchesMax) {
      --*prefetches_;
      return make_error(Errc::no_space, "too many prefetches to the device tier are under way");
    }
    const auto keys = prefix.keys().subspan(first, end - first);
    const auto hold = std::make_shared<HeldBlocks>(parts_.session, ns_, first, prefix.parent(first),
                                                   std::vector(keys.begin(), keys.end()),
                                                   prefix.proofs().slice(first, end), 0);
    const auto asked = parts_.session->lease_async(hold, Clock::now() + session::kPrefetchLeaseMax);
    if (!asked) {
      --*prefetches_;
      return asked;
    }
    // It is told at the latest when the lease's time is over, and lets go of the lease then.
    hold->on_settled([hold, copies = parts_.copies, gpu = parts_.gpu, under_way = prefetches_] {
      queue_prefetched(hold, copies, gpu);
      --*under_way;
    });
    return {};
  }

  // Of `matchable` blocks `prefix` has those that are asked for.
  std::shared_ptr<HeldBlocks> hold_of(Prefix&& prefix, std::uint32_t matchable,
                                      BlockRange range) const {
    return hold_of(prefix, matchable, range, [&](std::uint32_t first, std::uint32_t end) {
      return std::move(prefix).take_proofs().take(first, end);
    });
  }
  std::shared_ptr<HeldBlocks> hold_of(const Prefix& prefix, std::uint32_t matchable,
                                      BlockRange range) const {
    return hold_of(prefix, matchable, range, [&](std::uint32_t first, std::uint32_t end) {
      return prefix.proofs().slice(first, end);
    });
  }
  template <class ProofsOf>
  std::shared_ptr<HeldBlocks> hold_of(const Prefix& prefix, std::uint32_t matchable,
                                      BlockRange range, ProofsOf&& proofs_of) const {
    const std::uint32_t end = std::min({range.end, matchable, prefix.blocks()});
    const std::uint32_t first = std::min(range.first, end);
    const std::uint32_t wanted =
        std::min<std::uint32_t>(end - first, static_cast<std::uint32_t>(wire::kLeaseBlocksMax));
    const auto keys = prefix.keys().subspan(first, wanted);
    return std::make_shared<HeldBlocks>(
        parts_.session, ns_, first, prefix.parent(first), std::vector(keys.begin(), keys.end()),
        proofs_of(first, first + wanted), range.first == 0 ? matchable : wanted);
  }

  Result<Lease> lease_of(std::shared_ptr<HeldBlocks> hold, Deadline deadline) {
    if (forked()) return of_parent();
    Result<void> granted;
    if (!hold->keys().empty()) {
      granted = parts_.session->lease(hold, deadline);
    } else {
      ns_->missed += hold->looked_up();
    }
    hold->count_lookup(granted.has_value());
    if (!granted) return granted.error();
    return make_handle(&CacheImpl::make_lease, std::move(hold), parts_.copies, parts_.gpu);
  }

  // What of an offer is to be written back, and what was dropped of it at once.
  struct Offer {
    WriteBackJob::Work work;
    Drops refused{};
    std::optional<Error> error{};
  };

  Offer take(const Prefix& prefix, std::uint32_t first_block, const Pages& pages, StreamView stream,
             std::optional<Deadline> slots_by) {
    Offer offer;
    const std::size_t after_first =
        prefix.blocks() > first_block ? prefix.blocks() - first_block : 0;
    const auto offered = static_cast<std::uint32_t>(
        std::min<std::size_t>(after_first, PageTable::blocks_of(pages, *ns_)));
    auto table = PageTable::of(pages, *ns_, stream, parts_.gpu != nullptr);
    if (!table) {
      offer.error = table.error();
    } else if (prefix.ns() != ns_->id) {
      offer.error = wrong_prefix();
    } else if (parts_.session->read_only()) {
      offer.error = make_error(Errc::refused, "this client may only read");
    } else if (ns_->invalidated) {
      offer.error = ns_->refusal();
    }
    if (offer.error) {
      drop(offer, offered, DropReason::failed);
      return offer;
    }
    offer.work.blocks = parts_.budget->take(offered);
    if (offered > 0 && offer.work.blocks == 0)
      offer.error = make_error(Errc::no_space, "too many blocks wait to be written back");
    drop(offer, offered - offer.work.blocks, DropReason::queue_full);
    if (offer.work.blocks > 0) fill(offer.work, prefix, first_block, std::move(*table), slots_by);
    return offer;
  }

  void fill(WriteBackJob::Work& work, const Prefix& prefix, std::uint32_t first_block,
            PageTable table, std::optional<Deadline> slots_by) const {
    work.first_block = first_block;
    work.answer_tokens = prefix.answer_tokens();
    work.slots_by = slots_by;
    if (!slots_by && parts_.slot_wait.count() > 0) work.slots_by = Clock::now() + parts_.slot_wait;
    const auto keys = prefix.keys().subspan(first_block, work.blocks);
    work.before = prefix.parent(first_block);
    work.keys.assign(keys.begin(), keys.end());
    work.proofs = prefix.proofs().slice(first_block, first_block + work.blocks);
    work.pages = std::move(table);
    parts_.session->refill(ns_);
  }

  void drop(Offer& offer, std::uint32_t blocks, DropReason why) {
    offer.refused.blocks[static_cast<std::size_t>(why)] += blocks;
    parts_.session->note_dropped(why, blocks);
    if (offer.error) {
      parts_.session->log().line(session::Topic::refused, LogLevel::warning,
                                 "a write-back was refused: " + offer.error->message);
    }
  }

  // Null, with its blocks dropped, where the GPU refuses.
  std::shared_ptr<WriteBackJob> queue_write_back(Offer& offer, StreamView stream) {
    const std::uint32_t blocks = offer.work.blocks;
    auto job = make_write_back_job(std::move(offer.work), stream);
    if (!job) {
      parts_.budget->give(blocks);
      offer.error = job.error();
      drop(offer, blocks, DropReason::failed);
      return nullptr;
    }
    push(*job);
    return *job;
  }

  Result<std::shared_ptr<WriteBackJob>> make_write_back_job(WriteBackJob::Work work,
                                                            StreamView stream) {
    if (parts_.gpu)
      return parts_.gpu->write_back(parts_.session, ns_, parts_.budget, std::move(work), stream);
    return std::shared_ptr<WriteBackJob>(
        std::make_shared<HostWriteBackJob>(parts_.session, ns_, parts_.budget, std::move(work)));
  }

  void push(const std::shared_ptr<WriteBackJob>& job) {
    if (!parts_.copies->push(CopyQueue::Priority::write_back, job, session::kWriteBacksQueuedMax))
      job->abandon();
  }

  std::shared_ptr<LayerStoring> layers_of(WriteBackJob::Work work) {
    const std::uint32_t blocks = work.blocks;
    if (!parts_.gpu) {
      return make_host_layer_store(
          std::make_shared<HostLayerStore>(parts_.session, ns_, parts_.budget, std::move(work)),
          parts_.copies, blocks, ns_->layout.layers);
    }
    const auto later = std::make_shared<Offer>(Offer{std::move(work)});
    auto self = shared_from_this();
    return make_deferred_layer_store(
        blocks, ns_->layout.layers,
        [self, later](StreamView stream) -> Result<std::shared_ptr<WriteBackJob>> {
          auto job = self->queue_write_back(*later, stream);
          if (!job) return *later->error;
          return job;
        },
        [self, blocks] { self->parts_.budget->give(blocks); });
  }

  const Parts parts_;
  const std::shared_ptr<session::NamespaceEntry> ns_;
  const std::shared_ptr<std::atomic<std::uint32_t>> prefetches_ =
      std::make_shared<std::atomic<std::uint32_t>>(0);
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
