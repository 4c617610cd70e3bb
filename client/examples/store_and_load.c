/* Stores the KV pages of a prompt and loads them into other pages, with kvtier's C interface alone.
 *
 *   store_and_load SOCKET
 *
 * The engine keeps, for each of its layers, one tensor of pages: [page][K, V][token][head][dim] of
 * bf16. It hands over block numbers; kvtier does the rest. */
#include <kvtier/kvtier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, HEADS = 2, DIM = 64, BLOCK_TOKENS = 16, BLOCKS = 8, POOL_PAGES = 64 };
#define SECONDS(n) kvt_after((n)*1000000000LL)

static uint16_t pool_memory[LAYERS][POOL_PAGES][2][BLOCK_TOKENS * HEADS * DIM];

static void check(kvt_code code, const char* what) {
  if (code == KVT_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, kvt_code_name(code), kvt_error());
  exit(1);
}

static kvt_pool* describe_pool(const kvt_namespace* ns) {
  kvt_pool_side k[LAYERS], v[LAYERS];
  for (int layer = 0; layer < LAYERS; ++layer) {
    k[layer] = (kvt_pool_side)KVT_POOL_SIDE_INIT;
    k[layer].base = pool_memory[layer][0][0];
    k[layer].bytes = sizeof pool_memory[layer] - sizeof pool_memory[layer][0][0];
    k[layer].page_stride = sizeof pool_memory[layer][0];
    k[layer].token_stride = sizeof(uint16_t) * HEADS * DIM;
    k[layer].head_stride = DIM * sizeof(uint16_t);
    v[layer] = k[layer];
    v[layer].base = pool_memory[layer][0][1];
  }
  kvt_pool_shape shape = KVT_POOL_SHAPE_INIT;
  shape.type = KVT_DTYPE_BF16;
  shape.pages = POOL_PAGES;
  shape.layers = LAYERS;
  shape.k = k;
  shape.v = v;
  kvt_pool* pool = NULL;
  check(kvt_pool_new(ns, &shape, &pool), "the pool");
  return pool;
}

static void store(kvt_cache* cache, const kvt_prefix* prefix, const kvt_pages* pages) {
  kvt_write_back* write = NULL;
  kvt_write_back_result result = KVT_WRITE_BACK_RESULT_INIT;
  check(kvt_write_back_start(cache, prefix, 0, pages, NULL, SECONDS(10), &write), "a store");
  check(kvt_write_back_wait(write, SECONDS(20)), "the end of a store");
  check(kvt_write_back_get_result(write, &result), "a store");
  printf("stored %u blocks, %u were there\n", result.accepted, result.cached);
  kvt_write_back_free(write);
}

static uint32_t load(kvt_cache* cache, const kvt_prefix* prefix, const kvt_pages* pages) {
  kvt_lease* lease = NULL;
  kvt_load* copies = NULL;
  uint32_t good = 0;
  check(kvt_lease_take(cache, prefix, 0, BLOCKS, SECONDS(10), &lease), "a lease");
  kvt_lease_wait_ready(lease, SECONDS(10));
  check(kvt_load_start(lease, pages, NULL, &copies), "a load");
  check(kvt_load_finish(copies, SECONDS(10), &good), "the end of a load");
  kvt_load_free(copies);
  kvt_lease_free(lease);
  return good;
}

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: store_and_load SOCKET\n"), 2;
  kvt_client_options options = KVT_CLIENT_OPTIONS_INIT;
  options.socket = argv[1];
  options.name = "store_and_load";
  kvt_namespace ns = KVT_NAMESPACE_INIT;
  ns.model = "example@1";
  ns.positions = "rope theta=10000";
  ns.layers = LAYERS;
  ns.kv_heads = HEADS;
  ns.head_dim_k = ns.head_dim_v = DIM;
  ns.block_tokens = BLOCK_TOKENS;
  ns.format = KVT_FORMAT_BF16;
  kvt_client* client = NULL;
  kvt_cache* cache = NULL;
  kvt_prefix* prefix = NULL;
  check(kvt_client_start(&options, &client), "the client");
  check(kvt_cache_open(client, &ns, &cache), "the namespace");
  check(kvt_cache_wait_open(cache, SECONDS(10)), "the namespace");
  check(kvt_prefix_new(cache, &prefix), "the prefix");
  for (uint32_t token = 0; token <= BLOCKS * BLOCK_TOKENS; ++token)
    check(kvt_prefix_append(prefix, &token, 1), "a token");

  kvt_pool* pool = describe_pool(&ns);
  uint32_t from[BLOCKS], to[BLOCKS];
  for (uint32_t block = 0; block < BLOCKS; ++block) {
    from[block] = 2 * block;
    to[block] = POOL_PAGES - 1 - block;
    for (int layer = 0; layer < LAYERS; ++layer)
      memset(pool_memory[layer][from[block]], (int)(0x40 + 16 * block + (uint32_t)layer),
             sizeof pool_memory[layer][0]);
  }
  kvt_pages pages = KVT_PAGES_INIT;
  pages.pool = pool;
  pages.numbers = from;
  pages.numbers_count = BLOCKS;
  store(cache, prefix, &pages);
  check(kvt_client_flush(client, SECONDS(30)), "a flush");
  pages.numbers = to;
  const uint32_t good = load(cache, prefix, &pages);
  printf("loaded %u blocks\n", good);
  for (uint32_t block = 0; block < good; ++block)
    for (int layer = 0; layer < LAYERS; ++layer)
      if (memcmp(pool_memory[layer][from[block]], pool_memory[layer][to[block]],
                 sizeof pool_memory[layer][0]) != 0)
        return fprintf(stderr, "block %u differs in layer %d\n", block, layer), 1;
  kvt_pool_free(pool);
  kvt_prefix_free(prefix);
  kvt_cache_free(cache);
  kvt_client_free(client);
  return good == BLOCKS ? 0 : 1;
}
