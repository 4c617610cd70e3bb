// Matches, leases, loads, write-backs and stores by layer in C.
#include "client/c/convert.h"

using kvtier::Errc;
using namespace kvtier::c;

namespace {

kvt_code give_match(const kvtier::Match& from, kvt_match* match) {
  kvt_match all = KVT_MATCH_INIT;
  all.blocks = from.blocks;
  std::copy(from.per_tier.begin(), from.per_tier.end(), all.per_tier);
  all.remote = from.remote();
  return give_struct(all, match, "kvt_match");
}

}  // namespace

kvt_code kvt_cache_match(const kvt_cache* cache, const kvt_prefix* prefix, kvt_match* match) {
  if (prefix == nullptr) return null_argument("prefix");
  return give_match(cache->cache->match(prefix->prefix), match);
}
kvt_code kvt_cache_look_up(kvt_cache* cache, const kvt_prefix* prefix, int64_t deadline,
                           kvt_match* match) {
  if (prefix == nullptr) return null_argument("prefix");
  return give_match(cache->cache->look_up(prefix->prefix, deadline_of(deadline)), match);
}

kvt_code kvt_lease_take(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first, uint32_t end,
                        int64_t deadline, kvt_lease** lease) {
  if (prefix == nullptr || lease == nullptr) return null_argument("prefix or lease");
  auto taken = cache->cache->lease(prefix->prefix, {first, end}, deadline_of(deadline));
  if (!taken) return failed(taken.error());
  return give(lease, std::move(*taken));
}
kvt_code kvt_lease_async(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first, uint32_t end,
                         int64_t deadline, kvt_lease** lease) {
  if (prefix == nullptr || lease == nullptr) return null_argument("prefix or lease");
  auto asked = cache->cache->lease_async(prefix->prefix, {first, end}, deadline_of(deadline));
  if (!asked) return failed(asked.error());
  return give(lease, std::move(*asked));
}
void kvt_lease_free(kvt_lease* lease) {
  delete lease;
}
void kvt_lease_release(kvt_lease* lease) {
  lease->lease.release();
}
kvt_lease_state kvt_lease_get_state(const kvt_lease* lease) {
  return static_cast<kvt_lease_state>(lease->lease.state());
}
kvt_code kvt_lease_error(const kvt_lease* lease) {
  const auto why = lease->lease.error();
  return why ? failed(*why) : KVT_OK;
}
bool kvt_lease_held(const kvt_lease* lease) {
  return lease->lease.held();
}
uint32_t kvt_lease_blocks(const kvt_lease* lease) {
  return lease->lease.blocks();
}
kvt_code kvt_lease_source(const kvt_lease* lease, uint32_t block, kvt_tier* tier) {
  if (tier == nullptr) return null_argument("tier");
  if (block >= lease->lease.blocks())
    return failed(Errc::invalid, "the lease has no block " + std::to_string(block));
  *tier = static_cast<kvt_tier>(lease->lease.source(block));
  return KVT_OK;
}
uint32_t kvt_lease_wait_ready(kvt_lease* lease, int64_t deadline) {
  return lease->lease.wait_ready(deadline_of(deadline));
}
kvt_code kvt_lease_event_fd(kvt_lease* lease, int* fd) {
  if (fd == nullptr) return null_argument("fd");
  const auto event = lease->lease.event_fd();
  if (!event) return failed(event.error());
  *fd = *event;
  return KVT_OK;
}
kvt_code kvt_lease_on_settled(kvt_lease* lease, void (*callback)(void* user), void* user) {
  if (callback == nullptr) return null_argument("callback");
  lease->lease.on_settled([callback, user] { callback(user); });
  return KVT_OK;
}

kvt_code kvt_load_start(kvt_lease* lease, const kvt_pages* pages, void* stream, kvt_load** load) {
  if (load == nullptr) return null_argument("load");
  const auto of = pages_of(pages);
  if (!of) return failed(of.error());
  auto started = lease->lease.load_into(*of, stream_of(stream));
  if (!started) return failed(started.error());
  return give(load, std::move(*started));
}
void kvt_load_free(kvt_load* load) {
  delete load;
}
uint32_t kvt_load_blocks(const kvt_load* load) {
  return load->load.blocks();
}
size_t kvt_load_faults(const kvt_load* load) {
  return load->load.faults().size();
}
kvt_code kvt_load_fault(const kvt_load* load, size_t fault, uint32_t* block) {
  const auto faults = load->load.faults();
  if (fault >= faults.size())
    return failed(Errc::invalid, "the load has no fault " + std::to_string(fault));
  if (block != nullptr) *block = faults[fault].block;
  return failed(faults[fault].error);
}
void* kvt_load_record(const kvt_load* load, uint32_t block) {
  const auto records = load->load.records();
  return block < records.size() ? records[block] : nullptr;
}
kvt_code kvt_load_wait_layer(kvt_load* load, uint32_t layer, void* stream) {
  if (layer >= load->load.layers())
    return failed(Errc::invalid, "the load has no layer " + std::to_string(layer));
  load->load.wait_layer(layer, stream_of(stream));
  return KVT_OK;
}
bool kvt_load_ended(const kvt_load* load) {
  return load->load.ended();
}
kvt_code kvt_load_finish(kvt_load* load, int64_t deadline, uint32_t* blocks) {
  if (blocks == nullptr) return null_argument("blocks");
  const auto good = load->load.finish(deadline_of(deadline));
  if (!good) return failed(Errc::deadline, "the copies of a load did not end in time");
  *blocks = *good;
  return KVT_OK;
}

kvt_code kvt_write_back_start(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first_block,
                              const kvt_pages* pages, void* stream, int64_t slots_by,
                              kvt_write_back** write) {
  if (prefix == nullptr || write == nullptr) return null_argument("prefix or write");
  const auto of = pages_of(pages);
  if (!of) return failed(of.error());
  return give(write, cache->cache->write_back(prefix->prefix, first_block, *of, stream_of(stream),
                                              slots_by_of(slots_by)));
}
void kvt_write_back_free(kvt_write_back* write) {
  delete write;
}
kvt_code kvt_write_back_wait(kvt_write_back* write, int64_t deadline) {
  if (write->write.wait(deadline_of(deadline))) return KVT_OK;
  return failed(Errc::deadline, "a write-back did not end in time");
}
void kvt_write_back_hurry(kvt_write_back* write) {
  write->write.hurry();
}
bool kvt_write_back_ended(const kvt_write_back* write) {
  return write->write.ended();
}
kvt_code kvt_write_back_get_result(const kvt_write_back* write, kvt_write_back_result* result) {
  kvt_write_back_result all = KVT_WRITE_BACK_RESULT_INIT;
  all.accepted = write->write.accepted();
  all.cached = write->write.cached();
  const kvtier::Drops dropped = write->write.dropped();
  std::copy(dropped.blocks.begin(), dropped.blocks.end(), all.dropped);
  if (const kvt_code code = give_struct(all, result, "kvt_write_back_result"); code != KVT_OK)
    return code;
  const auto why = write->write.error();
  return why ? failed(*why) : KVT_OK;
}

kvt_code kvt_layer_store_begin(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first_block,
                               const kvt_pages* pages, int64_t slots_by, kvt_layer_store** store) {
  if (prefix == nullptr || store == nullptr) return null_argument("prefix or store");
  const auto of = pages_of(pages);
  if (!of) return failed(of.error());
  auto begun = cache->cache->begin_store(prefix->prefix, first_block, *of, slots_by_of(slots_by));
  if (!begun) return failed(begun.error());
  return give(store, std::move(*begun));
}
void kvt_layer_store_free(kvt_layer_store* store) {
  delete store;
}
uint32_t kvt_layer_store_blocks(const kvt_layer_store* store) {
  return store->store.blocks();
}
kvt_code kvt_layer_store_layer(kvt_layer_store* store, uint32_t layer, void* stream) {
  return code_of(store->store.layer(layer, stream_of(stream)));
}
kvt_code kvt_layer_store_commit(kvt_layer_store* store, kvt_write_back** write) {
  if (write == nullptr) return null_argument("write");
  return give(write, store->store.commit());
}

kvt_code kvt_cache_hint(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first, uint32_t end,
                        const kvt_hint* hint) {
  if (prefix == nullptr) return null_argument("prefix");
  const auto c = taken(hint, kvt_hint KVT_HINT_INIT, "kvt_hint");
  if (!c) return failed(c.error());
  const auto kind = static_cast<std::uint32_t>(c->kind);
  const auto tier = static_cast<std::uint32_t>(c->tier);
  if (kind >= kvtier::kHintKinds || tier >= kvtier::kTiers ||
      c->priority > kvtier::kHintPriorityMax || c->keep_s < 0)
    return failed(Errc::invalid, "kvt_hint has a kind, tier, priority or time that there is not");
  return code_of(cache->cache->hint(
      prefix->prefix, {first, end},
      {static_cast<kvtier::HintKind>(kind), static_cast<kvtier::Tier>(tier),
       static_cast<std::uint8_t>(c->priority), std::chrono::seconds(c->keep_s)}));
}
