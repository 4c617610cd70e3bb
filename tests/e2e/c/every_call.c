/* Every function of kvtier.h, called from C against a daemon. every_call SOCKET; ends with the line
 * of what did not hold. */
#include <kvtier/kvtier.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(holds)                                                               \
  do {                                                                              \
    if (!(holds)) {                                                                 \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #holds, kvt_error()); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)
#define SOON kvt_after(30000000000LL)

enum { LAYERS = 3, BLOCKS = 4, TOKENS = 16, RAW = 16 * 32 };

static atomic_int lines;
static void count_line(void* user, kvt_log_level level, const char* line) {
  EXPECT(level <= KVT_LOG_DEBUG && line[0] != 0);
  ++*(atomic_int*)user;
}

static void settled(void* user) {
  atomic_store((atomic_int*)user, 1);
}

static kvt_namespace raw_namespace(void) {
  kvt_namespace ns = KVT_NAMESPACE_INIT;
  ns.model = "every call@1";
  ns.layers = LAYERS;
  ns.block_tokens = TOKENS;
  ns.format = KVT_FORMAT_RAW;
  ns.raw_bytes = RAW;
  ns.page_layout = "bytes";
  ns.positions = "none";
  ns.extra_bytes_max = 32;
  return ns;
}

static unsigned char memory[LAYERS][2 * BLOCKS][RAW];

static kvt_pool* raw_pool(const kvt_namespace* ns) {
  kvt_pool_side k[LAYERS];
  for (int layer = 0; layer < LAYERS; ++layer) {
    const kvt_pool_side side = {
        sizeof side, memory[layer], sizeof memory[layer], RAW, 0, 0, 1, RAW, 0};
    k[layer] = side;
  }
  kvt_pool_shape shape = KVT_POOL_SHAPE_INIT;
  shape.pages = 2 * BLOCKS;
  shape.layers = LAYERS;
  shape.k = k;
  kvt_pool* pool = NULL;
  EXPECT(kvt_pool_new(ns, &shape, &pool) == KVT_OK);
  EXPECT(kvt_pool_pages_of_block(pool) == 1);
  --k[1].bytes;
  EXPECT(kvt_pool_new(ns, &shape, &pool) == KVT_INVALID);
  EXPECT(strstr(kvt_error(), "layer 1") != NULL);
  return pool;
}

static void check_structs(const char* socket) {
  kvt_client* client = NULL;
  kvt_client_options options = KVT_CLIENT_OPTIONS_INIT;
  options.socket = socket;
  options.size = 0;
  EXPECT(kvt_client_start(&options, &client) == KVT_INVALID);
  EXPECT(kvt_client_start(NULL, &client) == KVT_INVALID);
  options = (kvt_client_options)KVT_CLIENT_OPTIONS_INIT;
  options.cuda_device = -2;
  EXPECT(kvt_client_start(&options, &client) == KVT_INVALID);
  /* A program that is older knows fewer fields, one that is newer more. */
  options = (kvt_client_options)KVT_CLIENT_OPTIONS_INIT;
  options.socket = socket;
  options.slots_ahead = 1000000;
  options.size = offsetof(kvt_client_options, slots_ahead);
  EXPECT(kvt_client_start(&options, &client) == KVT_OK);
  kvt_client_free(client);
  struct {
    kvt_client_options known;
    int more;
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.known = (kvt_client_options)KVT_CLIENT_OPTIONS_INIT;
  newer.known.socket = socket;
  newer.known.size = sizeof newer;
  EXPECT(kvt_client_start(&newer.known, &client) == KVT_OK);
  kvt_client_free(client);
  newer.more = 1;
  EXPECT(kvt_client_start(&newer.known, &client) == KVT_INVALID);
}

static kvt_prefix* prefix_of(const kvt_cache* cache) {
  kvt_prefix* prefix = NULL;
  EXPECT(kvt_prefix_new(cache, &prefix) == KVT_OK);
  EXPECT(kvt_prefix_cover(prefix, 20, 40, "an image", 8) == KVT_OK);
  uint32_t tokens[BLOCKS * TOKENS + 1];
  for (uint32_t i = 0; i < BLOCKS * TOKENS + 1; ++i) tokens[i] = i;
  EXPECT(kvt_prefix_append(prefix, tokens, BLOCKS * TOKENS + 1) == KVT_OK);
  EXPECT(kvt_prefix_cover(prefix, 20, 40, "too late", 8) == KVT_INVALID);
  EXPECT(kvt_prefix_append_digest(prefix, tokens, 16) == KVT_INVALID);
  kvt_prefix_expect_answer(prefix, 64);
  EXPECT(kvt_prefix_tokens(prefix) == BLOCKS * TOKENS + 1);
  EXPECT(kvt_prefix_blocks(prefix) == BLOCKS);
  EXPECT(kvt_prefix_blocks_matchable(prefix) == BLOCKS);
  kvt_prefix* copy = NULL;
  uint8_t key[16], same[16];
  EXPECT(kvt_prefix_copy(prefix, &copy) == KVT_OK);
  EXPECT(kvt_prefix_truncate(copy, 2 * TOKENS) == KVT_OK);
  EXPECT(kvt_prefix_blocks(copy) == 2);
  EXPECT(kvt_prefix_key(prefix, 1, key) == KVT_OK && kvt_prefix_key(copy, 1, same) == KVT_OK);
  EXPECT(memcmp(key, same, sizeof key) == 0);
  EXPECT(kvt_prefix_key(copy, 2, key) == KVT_INVALID);
  kvt_prefix_free(copy);
  return prefix;
}

static void check_store(kvt_cache* cache, const kvt_prefix* prefix, const kvt_pages* pages) {
  kvt_layer_store* store = NULL;
  kvt_write_back* write = NULL;
  kvt_write_back_result result = KVT_WRITE_BACK_RESULT_INIT;
  EXPECT(kvt_layer_store_begin(cache, prefix, 0, pages, SOON, &store) == KVT_OK);
  EXPECT(kvt_layer_store_blocks(store) == BLOCKS);
  EXPECT(kvt_layer_store_layer(store, LAYERS, NULL) == KVT_INVALID);
  EXPECT(kvt_layer_store_layer(store, 0, NULL) == KVT_OK);
  kvt_layer_store_free(store); /* abandoned */
  EXPECT(kvt_layer_store_begin(cache, prefix, 0, pages, SOON, &store) == KVT_OK);
  for (uint32_t layer = 0; layer < LAYERS; ++layer)
    EXPECT(kvt_layer_store_layer(store, layer, NULL) == KVT_OK);
  EXPECT(kvt_layer_store_commit(store, &write) == KVT_OK);
  kvt_layer_store_free(store);
  EXPECT(kvt_write_back_wait(write, SOON) == KVT_OK && kvt_write_back_ended(write));
  EXPECT(kvt_write_back_get_result(write, &result) == KVT_OK);
  EXPECT(result.accepted == BLOCKS && result.cached == 0);
  kvt_write_back_free(write);
}

static void check_again(kvt_client* client, kvt_cache* cache, const kvt_prefix* prefix,
                        kvt_pages pages) {
  kvt_write_back* write = NULL;
  kvt_write_back_result result = KVT_WRITE_BACK_RESULT_INIT;
  EXPECT(kvt_client_flush(client, SOON) == KVT_OK);
  EXPECT(kvt_write_back_start(cache, prefix, 0, &pages, NULL, 0, &write) == KVT_OK);
  kvt_write_back_hurry(write);
  EXPECT(kvt_write_back_wait(write, KVT_NEVER) == KVT_OK);
  EXPECT(kvt_write_back_get_result(write, &result) == KVT_OK && result.cached == BLOCKS);
  kvt_write_back_free(write);
  pages.numbers_count = 3;
  pages.records = (void* const*)&pages.numbers;
  pages.records_count = 1;
  EXPECT(kvt_write_back_start(cache, prefix, 0, &pages, NULL, 0, &write) == KVT_OK);
  EXPECT(kvt_write_back_get_result(write, &result) == KVT_INVALID);
  EXPECT(result.dropped[KVT_DROP_FAILED] == 1);
  kvt_write_back_free(write);
}

static void check_load(kvt_cache* cache, const kvt_prefix* prefix, const kvt_pages* pages) {
  kvt_match match = KVT_MATCH_INIT;
  EXPECT(kvt_cache_match(cache, prefix, &match) == KVT_OK && match.blocks == BLOCKS);
  kvt_lease* lease = NULL;
  atomic_int called = 0;
  int fd = -1;
  EXPECT(kvt_lease_async(cache, prefix, 0, BLOCKS, SOON, &lease) == KVT_OK);
  EXPECT(kvt_lease_on_settled(lease, settled, &called) == KVT_OK);
  EXPECT(kvt_lease_event_fd(lease, &fd) == KVT_OK);
  struct pollfd one = {fd, POLLIN, 0};
  EXPECT(poll(&one, 1, 30000) == 1);
  EXPECT(kvt_lease_get_state(lease) == KVT_LEASE_SETTLED && kvt_lease_error(lease) == KVT_OK);
  EXPECT(kvt_lease_held(lease) && kvt_lease_blocks(lease) == BLOCKS);
  while (!called) poll(NULL, 0, 1);
  kvt_tier tier = KVT_TIER_DISK;
  EXPECT(kvt_lease_source(lease, 0, &tier) == KVT_OK && tier != KVT_TIER_DISK);
  EXPECT(kvt_lease_source(lease, BLOCKS, &tier) == KVT_INVALID);
  kvt_load* load = NULL;
  uint32_t good = 0, block = 0;
  EXPECT(kvt_load_start(lease, pages, NULL, &load) == KVT_OK);
  EXPECT(kvt_load_blocks(load) == BLOCKS && kvt_load_faults(load) == 0);
  EXPECT(kvt_load_fault(load, 0, &block) == KVT_INVALID);
  EXPECT(kvt_load_wait_layer(load, LAYERS - 1, NULL) == KVT_OK);
  EXPECT(kvt_load_wait_layer(load, LAYERS, NULL) == KVT_INVALID);
  EXPECT(kvt_load_record(load, 0) == NULL);
  EXPECT(kvt_load_finish(load, SOON, &good) == KVT_OK && good == BLOCKS && kvt_load_ended(load));
  kvt_load_free(load);
  kvt_lease_release(lease);
  EXPECT(!kvt_lease_held(lease) && kvt_lease_error(lease) == KVT_STALE);
  kvt_lease_free(lease);
  EXPECT(kvt_lease_take(cache, prefix, 1, 3, SOON, &lease) == KVT_OK);
  EXPECT(kvt_lease_wait_ready(lease, SOON) == 2);
  kvt_lease_free(lease);
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  EXPECT(kvt_api() == KVT_API && kvt_version()[0] != 0 && kvt_protocol_version() > 0);
  EXPECT(strcmp(kvt_code_name(KVT_STALE), "stale") == 0 && kvt_after(KVT_NEVER) == KVT_NEVER);
  check_structs(argv[1]);

  kvt_client_options options = KVT_CLIENT_OPTIONS_INIT;
  options.socket = argv[1];
  options.log = count_line;
  options.log_user = &lines;
  options.log_level = KVT_LOG_DEBUG;
  kvt_client* client = NULL;
  EXPECT(kvt_client_start(&options, &client) == KVT_OK);
  EXPECT(kvt_client_wait_connected(client, SOON) == KVT_OK && kvt_client_connected(client));

  kvt_namespace ns = raw_namespace();
  kvt_cache* cache = NULL;
  uint8_t id[16];
  EXPECT(kvt_namespace_id(&ns, id) == KVT_OK);
  EXPECT(kvt_cache_open(client, &ns, &cache) == KVT_OK);
  EXPECT(kvt_cache_wait_open(cache, SOON) == KVT_OK && kvt_cache_state(cache) == KVT_OK);
  kvt_record_layout layout = KVT_RECORD_LAYOUT_INIT;
  EXPECT(kvt_cache_layout(cache, &layout) == KVT_OK && layout.payload_bytes == LAYERS * RAW);
  ns.raw_bytes = 0;
  EXPECT(kvt_cache_open(client, &ns, &cache) == KVT_INVALID && strstr(kvt_error(), "raw_bytes"));
  ns.raw_bytes = RAW;

  kvt_prefix* prefix = prefix_of(cache);
  kvt_pool* pool = raw_pool(&ns);
  uint32_t from[BLOCKS], to[BLOCKS];
  for (uint32_t i = 0; i < BLOCKS; ++i) {
    from[i] = i;
    to[i] = 2 * BLOCKS - 1 - i;
    for (int layer = 0; layer < LAYERS; ++layer)
      memset(memory[layer][i], (int)(16 * i) + layer, RAW);
  }
  kvt_pages pages = KVT_PAGES_INIT;
  pages.pool = pool;
  pages.numbers = from;
  pages.numbers_count = BLOCKS;
  check_store(cache, prefix, &pages);
  check_again(client, cache, prefix, pages);
  pages.numbers = to;
  check_load(cache, prefix, &pages);
  for (uint32_t i = 0; i < BLOCKS; ++i)
    for (int layer = 0; layer < LAYERS; ++layer)
      EXPECT(memcmp(memory[layer][from[i]], memory[layer][to[i]], RAW) == 0);

  kvt_hint hint = KVT_HINT_INIT;
  hint.kind = KVT_HINT_KEEP;
  hint.priority = 1;
  EXPECT(kvt_cache_hint(cache, prefix, 0, BLOCKS, &hint) == KVT_OK);
  hint.priority = 100;
  EXPECT(kvt_cache_hint(cache, prefix, 0, BLOCKS, &hint) == KVT_INVALID);

  kvt_stats stats = KVT_STATS_INIT;
  EXPECT(kvt_client_stats(client, &stats) == KVT_OK);
  EXPECT(stats.blocks_written == BLOCKS && stats.hits[KVT_TIER_HOST] >= BLOCKS);
  EXPECT(stats.dropped[KVT_DROP_FAILED] == stats.blocks_dropped && lines > 0);
  kvt_client_free(client); /* the cache keeps it */
  EXPECT(kvt_cache_state(cache) == KVT_OK);
  kvt_pool_free(pool);
  kvt_prefix_free(prefix);
  kvt_cache_free(cache);
  kvt_cache_free(NULL);
  return 0;
}
