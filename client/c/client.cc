// Clients, caches, prefixes and pools in C.
#include "client/c/convert.h"
#include "core/wire/frame.h"

using kvtier::Errc;
using namespace kvtier::c;

namespace {

kvtier::Result<kvtier::ClientOptions> options_of(const kvt_client_options* from) {
  const auto c = taken(from, kvt_client_options KVT_CLIENT_OPTIONS_INIT, "kvt_client_options");
  if (!c) return c.error();
  const int level = static_cast<int>(c->log_level);
  if (level < KVT_LOG_ERROR || level > KVT_LOG_DEBUG)
    return kvtier::make_error(Errc::invalid, "kvt_client_options has no such log_level");
  if (c->cuda_device < -1)
    return kvtier::make_error(Errc::invalid,
                              "cuda_device is " + std::to_string(c->cuda_device) + "; -1 is none");
  const auto milliseconds = [](std::int64_t ns) {
    return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(ns));
  };
  kvtier::ClientOptions options;
  if (c->socket != nullptr) options.socket = c->socket;
  if (c->name != nullptr) options.name = c->name;
  if (c->cuda_device >= 0) options.cuda_device = static_cast<std::uint32_t>(c->cuda_device);
  options.read_only = c->read_only;
  options.verify_loads = c->verify_loads;
  options.slots_ahead = c->slots_ahead;
  options.write_backs_queued_max = c->write_backs_queued_max;
  options.reconnect_delay_max = milliseconds(c->reconnect_delay_max_ns);
  options.slot_wait = milliseconds(c->slot_wait_ns);
  options.log_level = static_cast<kvtier::LogLevel>(level);
  if (c->log != nullptr) {
    options.log = [sink = c->log, user = c->log_user](kvtier::LogLevel of, std::string_view line) {
      sink(user, static_cast<kvt_log_level>(of), std::string(line).c_str());
    };
  }
  return options;
}

kvtier::Result<std::vector<kvtier::PoolSide>> sides_of(const kvt_pool_side* from,
                                                       std::size_t count) {
  const auto c = taken(from, count, kvt_pool_side KVT_POOL_SIDE_INIT, "kvt_pool_side");
  if (!c) return c.error();
  std::vector<kvtier::PoolSide> sides;
  for (const kvt_pool_side& side : *c) {
    sides.push_back({static_cast<std::byte*>(side.base), side.bytes, side.page_stride,
                     side.token_stride, side.head_stride, side.rows, side.row_bytes,
                     side.row_stride});
  }
  return sides;
}

}  // namespace

const char* kvt_version(void) {
  return KVTIER_VERSION;
}
uint32_t kvt_api(void) {
  return KVT_API;
}
uint32_t kvt_protocol_version(void) {
  return kvtier::wire::kProtocolVersion;
}

kvt_code kvt_namespace_id(const kvt_namespace* ns, uint8_t id[16]) {
  if (id == nullptr) return null_argument("id");
  const auto of = namespace_of(ns);
  if (!of) return failed(of.error());
  const auto digest = kvtier::id_of(*of);
  std::memcpy(id, digest.bytes.data(), digest.bytes.size());
  return KVT_OK;
}

kvt_code kvt_client_start(const kvt_client_options* options, kvt_client** client) {
  if (client == nullptr) return null_argument("client");
  auto taken = options_of(options);
  if (!taken) return failed(taken.error());
  auto started = kvtier::Client::start(std::move(*taken));
  if (!started) return failed(started.error());
  return give(client, std::move(*started));
}
void kvt_client_free(kvt_client* client) {
  delete client;
}
bool kvt_client_connected(const kvt_client* client) {
  return client->client->connected();
}
kvt_code kvt_client_wait_connected(kvt_client* client, int64_t deadline) {
  return code_of(client->client->wait_connected(deadline_of(deadline)));
}
kvt_code kvt_client_flush(kvt_client* client, int64_t deadline) {
  return code_of(client->client->flush(deadline_of(deadline)));
}
kvt_code kvt_client_stats(const kvt_client* client, kvt_stats* stats) {
  const kvtier::ClientStats from = client->client->stats();
  kvt_stats all = KVT_STATS_INIT;
  all.blocks_looked_up = from.blocks_looked_up;
  std::copy(from.hits.begin(), from.hits.end(), all.hits);
  all.misses = from.misses;
  all.faults = from.faults;
  all.leases_lost = from.leases_lost;
  all.blocks_written = from.blocks_written;
  all.blocks_dropped = from.blocks_dropped;
  std::copy(from.dropped.blocks.begin(), from.dropped.blocks.end(), all.dropped);
  all.deadlines_missed = from.deadlines_missed;
  all.connects = from.connects;
  all.remote_hits = from.remote_hits();
  return give_struct(all, stats, "kvt_stats");
}

kvt_code kvt_cache_open(kvt_client* client, const kvt_namespace* ns, kvt_cache** cache) {
  if (client == nullptr || cache == nullptr) return null_argument("client or cache");
  const auto of = namespace_of(ns);
  if (!of) return failed(of.error());
  auto opened = client->client->open(*of);
  if (!opened) return failed(opened.error());
  return give(cache, client->client, std::move(*opened));
}
void kvt_cache_free(kvt_cache* cache) {
  if (cache != nullptr) cache->cache.reset();  // before the client
  delete cache;
}
kvt_code kvt_cache_state(const kvt_cache* cache) {
  return code_of(cache->cache->state());
}
kvt_code kvt_cache_wait_open(kvt_cache* cache, int64_t deadline) {
  return code_of(cache->cache->wait_open(deadline_of(deadline)));
}
kvt_code kvt_cache_layout(const kvt_cache* cache, kvt_record_layout* layout) {
  const kvtier::RecordLayout& from = cache->cache->layout();
  const kvt_record_layout all = {sizeof all,        from.layers,        from.block_tokens,
                                 from.header_bytes, from.payload_bytes, from.record_bytes};
  return give_struct(all, layout, "kvt_record_layout");
}

kvt_code kvt_prefix_new(const kvt_cache* cache, kvt_prefix** prefix) {
  if (cache == nullptr || prefix == nullptr) return null_argument("cache or prefix");
  return give(prefix, cache->cache->prefix());
}
kvt_code kvt_prefix_copy(const kvt_prefix* prefix, kvt_prefix** copy) {
  if (prefix == nullptr || copy == nullptr) return null_argument("prefix or copy");
  return give(copy, prefix->prefix);
}
void kvt_prefix_free(kvt_prefix* prefix) {
  delete prefix;
}
kvt_code kvt_prefix_append(kvt_prefix* prefix, const uint32_t* tokens, size_t count) {
  if (tokens == nullptr && count > 0) return null_argument("tokens");
  return code_of(prefix->prefix.append({tokens, count}));
}
kvt_code kvt_prefix_append_digest(kvt_prefix* prefix, const void* digest, size_t bytes) {
  if (digest == nullptr) return null_argument("digest");
  return code_of(prefix->prefix.append_digest({static_cast<const std::byte*>(digest), bytes}));
}
kvt_code kvt_prefix_cover(kvt_prefix* prefix, size_t first, size_t end, const void* bytes,
                          size_t count) {
  if (bytes == nullptr) return null_argument("bytes");
  return code_of(prefix->prefix.cover(first, end, {static_cast<const std::byte*>(bytes), count}));
}
void kvt_prefix_expect_answer(kvt_prefix* prefix, uint32_t tokens) {
  prefix->prefix.expect_answer(tokens);
}
kvt_code kvt_prefix_truncate(kvt_prefix* prefix, size_t tokens) {
  prefix->prefix.truncate(tokens);
  return KVT_OK;
}
size_t kvt_prefix_tokens(const kvt_prefix* prefix) {
  return prefix->prefix.tokens();
}
uint32_t kvt_prefix_blocks(const kvt_prefix* prefix) {
  return prefix->prefix.blocks();
}
uint32_t kvt_prefix_blocks_matchable(const kvt_prefix* prefix) {
  return prefix->prefix.blocks_matchable();
}
kvt_code kvt_prefix_key(const kvt_prefix* prefix, uint32_t block, uint8_t key[16]) {
  if (block >= prefix->prefix.blocks())
    return failed(Errc::invalid, "the prefix has no block " + std::to_string(block));
  const kvtier::Key& of = prefix->prefix.keys()[block];
  std::memcpy(key, of.bytes.data(), of.bytes.size());
  return KVT_OK;
}

kvt_code kvt_pool_new(const kvt_namespace* ns, const kvt_pool_shape* shape, kvt_pool** pool) {
  if (pool == nullptr) return null_argument("pool");
  const auto of = namespace_of(ns);
  if (!of) return failed(of.error());
  const auto c = taken(shape, kvt_pool_shape KVT_POOL_SHAPE_INIT, "kvt_pool_shape");
  if (!c) return failed(c.error());
  const auto type = dtype_of(c->type);
  if (!type) return failed(type.error());
  const auto k = sides_of(c->k, c->layers);
  if (!k) return failed(k.error());
  const auto v = sides_of(c->v, c->v == nullptr ? 0 : c->layers);
  if (!v) return failed(v.error());
  kvtier::PoolShape all{*type, c->pages, c->page_tokens, {}};
  for (std::uint32_t i = 0; i < c->layers; ++i)
    all.layers.push_back({(*k)[i], v->empty() ? kvtier::PoolSide{} : (*v)[i]});
  auto made = kvtier::PagePool::of(*of, std::move(all));
  if (!made) return failed(made.error());
  return give(pool, std::move(*made));
}
void kvt_pool_free(kvt_pool* pool) {
  delete pool;
}
uint32_t kvt_pool_pages_of_block(const kvt_pool* pool) {
  return pool->pool.pages_of_block();
}
