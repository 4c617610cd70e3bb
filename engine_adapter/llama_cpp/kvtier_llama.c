#include "kvtier_llama.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
  ALIGNMENT = 64,
  READ_BYTES = 1 << 20,
  /* The head of a sequence's state that is the same for every sequence of a context: it says
   * whether V is transposed, which no function tells, and how many layers there are. */
  HEAD_BYTES = 40,
  TEXT_BYTES = 512,
};
#define SLOTS_WITHIN_NS 2000000000LL

/* Pages that are read by a write-back until it has ended. */
typedef struct saving {
  struct saving* next;
  kvt_write_back* write;
  uint32_t count;
  uint32_t pages[];
} saving;

struct kvl {
  struct llama_context* context;
  llama_memory_t memory;
  llama_seq_id aside; /* the sequence of the block that is on its way */
  uint32_t block_tokens;
  size_t block_bytes;
  size_t page_stride;
  kvt_client* client;
  kvt_cache* cache;
  kvt_pool* pool;
  unsigned char* staging;
  uint32_t* free_pages;
  uint32_t free_count;
  uint32_t pages;
  saving* first; /* the oldest */
  saving* last;
  kvl_stats stats;
};

static _Thread_local char error_text[TEXT_BYTES];

const char* kvl_error(void) {
  return error_text;
}

__attribute__((format(printf, 2, 3))) static kvt_code fail(kvt_code code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
  return code;
}

static kvt_code passed_on(kvt_code code) {
  return code == KVT_OK ? KVT_OK : fail(code, "%s", kvt_error());
}

/* ---- What must be equal ---- */

kvt_code kvl_model_of_file(const char* path, char* text, size_t capacity) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return fail(KVT_IO, "%s: %s", path, strerror(errno));
  XXH3_state_t* state = XXH3_createState();
  unsigned char* bytes = malloc(READ_BYTES);
  bool good = state != NULL && bytes != NULL && XXH3_128bits_reset(state) == XXH_OK;
  for (size_t read; good && (read = fread(bytes, 1, READ_BYTES, file)) > 0;)
    good = XXH3_128bits_update(state, bytes, read) == XXH_OK;
  good = good && !ferror(file);
  const XXH128_hash_t digest = good ? XXH3_128bits_digest(state) : (XXH128_hash_t){0, 0};
  free(bytes);
  XXH3_freeState(state);
  fclose(file);
  if (!good) return fail(KVT_IO, "%s cannot be read to its end", path);
  const int length = snprintf(text, capacity, "llama.gguf@%016llx%016llx",
                              (unsigned long long)digest.high64, (unsigned long long)digest.low64);
  if (length < 0 || (size_t)length >= capacity)
    return fail(KVT_NO_SPACE, "a model's name takes %d bytes, and there are %zu", length + 1,
                capacity);
  return KVT_OK;
}

static kvt_code check_context(struct llama_context* context, const kvl_options* options) {
  const struct llama_model* model = llama_get_model(context);
  if (options->model == NULL || options->model[0] == '\0')
    return fail(KVT_INVALID, "options.model is empty: it has to name the weights");
  if (options->block_tokens == 0 || options->block_tokens > 1024)
    return fail(KVT_INVALID, "options.block_tokens is %u: 1 to 1024", options->block_tokens);
  if (llama_n_seq_max(context) < 2)
    return fail(KVT_INVALID, "the context has one sequence: make it with n_seq_max of at least 2");
  if (llama_n_ctx_seq(context) != llama_n_ctx(context))
    return fail(KVT_INVALID,
                "the context has memory of its own for each sequence: make it with kv_unified");
  if (llama_model_has_encoder(model) || !llama_model_has_decoder(model) ||
      llama_model_is_diffusion(model))
    return fail(KVT_INVALID, "the model is not a decoder: its states are not of prefixes");
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model))
    return fail(KVT_INVALID,
                "the model has recurrent layers: their state is of all tokens at once, and cannot "
                "be cut into blocks");
  if (llama_model_n_swa(model) > 0)
    return fail(KVT_INVALID,
                "the model has a sliding window of %d tokens: llama.cpp gives away only what is "
                "inside of it",
                llama_model_n_swa(model));
  return KVT_OK;
}

/* ---- Blocks and llama.cpp's memory ---- */

static void empty_aside(kvl* k) {
  llama_memory_seq_rm(k->memory, k->aside, -1, -1);
}

static kvt_code decode_aside(kvl* k, int32_t tokens) {
  struct llama_batch batch = llama_batch_init(tokens, 0, 1);
  for (int32_t i = 0; i < tokens; ++i) {
    batch.token[i] = 0;
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = k->aside;
    batch.logits[i] = i == tokens - 1;
  }
  batch.n_tokens = tokens;
  const int32_t result = llama_decode(k->context, batch);
  llama_batch_free(batch);
  if (result != 0)
    return fail(KVT_INVALID, "llama_decode of %d tokens returned %d: is there room for them?",
                tokens, result);
  return KVT_OK;
}

/* A state is a head and a piece for every token, all alike. `head`: what it begins with. */
static kvt_code measure(kvl* k, char head[2 * HEAD_BYTES + 1]) {
  if (llama_memory_seq_pos_max(k->memory, k->aside) >= 0)
    return fail(KVT_INVALID, "sequence %d is not empty: the last one is this library's", k->aside);
  const kvt_code code = decode_aside(k, 2);
  if (code != KVT_OK) return code;
  const size_t two = llama_state_seq_get_size(k->context, k->aside);
  llama_memory_seq_rm(k->memory, k->aside, 1, -1);
  const size_t one = llama_state_seq_get_size(k->context, k->aside);
  unsigned char* state = malloc(one);
  const bool got =
      state != NULL && llama_state_seq_get_data(k->context, state, one, k->aside) == one;
  empty_aside(k);
  for (size_t i = 0; i < HEAD_BYTES; ++i)
    snprintf(head + 2 * i, 3, "%02x", got && i < one ? state[i] : 0U);
  free(state);
  if (!got || two <= one)
    return fail(KVT_INVALID, "a state of 2 tokens has %zu bytes and one of 1 has %zu", two, one);
  k->block_bytes = one + (k->block_tokens - 1) * (two - one);
  return KVT_OK;
}

static llama_pos position(const kvl* k, size_t block) {
  return (llama_pos)(block * k->block_tokens);
}

static bool take_out(kvl* k, llama_seq_id sequence, uint32_t block, unsigned char* state) {
  llama_memory_seq_cp(k->memory, sequence, k->aside, position(k, block), position(k, block + 1));
  const bool whole =
      llama_state_seq_get_size(k->context, k->aside) == k->block_bytes &&
      llama_state_seq_get_data(k->context, state, k->block_bytes, k->aside) == k->block_bytes;
  empty_aside(k);
  return whole;
}

static bool put_in(kvl* k, llama_seq_id sequence, uint32_t block, const unsigned char* state) {
  /* Where it does not fit or is not as it should be, the sequence has been left alone. */
  const bool whole =
      llama_state_seq_set_data(k->context, state, k->block_bytes, k->aside) == k->block_bytes &&
      llama_memory_seq_pos_min(k->memory, k->aside) == position(k, block) &&
      llama_memory_seq_pos_max(k->memory, k->aside) == position(k, block + 1) - 1;
  if (whole)
    llama_memory_seq_cp(k->memory, k->aside, sequence, position(k, block), position(k, block + 1));
  empty_aside(k);
  return whole;
}

/* ---- Opening and closing ---- */

static kvt_code open_cache(kvl* k, const struct llama_context_params* params,
                           const kvl_options* options, const char* head) {
  char positions[TEXT_BYTES], page_layout[TEXT_BYTES];
  snprintf(positions, sizeof positions,
           "llama.cpp rope scaling=%d base=%g scale=%g yarn=%g,%g,%g,%g,%u",
           (int)params->rope_scaling_type, (double)params->rope_freq_base,
           (double)params->rope_freq_scale, (double)params->yarn_ext_factor,
           (double)params->yarn_attn_factor, (double)params->yarn_beta_fast,
           (double)params->yarn_beta_slow, params->yarn_orig_ctx);
  /* Of this variable it depends what quantised keys mean. */
  const char* unrotated = getenv("LLAMA_ATTN_ROT_DISABLE");
  snprintf(page_layout, sizeof page_layout, "llama.cpp %s state_seq=%d k=%s v=%s unrotated=%s %s",
           llama_version(), LLAMA_STATE_SEQ_VERSION, ggml_type_name(params->type_k),
           ggml_type_name(params->type_v), unrotated == NULL ? "0" : unrotated, head);
  kvt_namespace ns = KVT_NAMESPACE_INIT;
  ns.model = options->model;
  ns.adapter = options->adapter;
  ns.tenant = options->tenant;
  ns.positions = positions;
  ns.page_layout = page_layout;
  ns.layers = 1;
  ns.block_tokens = k->block_tokens;
  ns.format = KVT_FORMAT_RAW;
  ns.raw_bytes = (uint32_t)k->block_bytes;

  kvt_pool_side side = KVT_POOL_SIDE_INIT;
  side.base = k->staging;
  side.bytes = k->pages * k->page_stride;
  side.page_stride = k->page_stride;
  side.rows = 1;
  side.row_bytes = side.row_stride = k->block_bytes;
  kvt_pool_shape shape = KVT_POOL_SHAPE_INIT;
  shape.pages = k->pages;
  shape.layers = 1;
  shape.k = &side;

  kvt_client_options client = KVT_CLIENT_OPTIONS_INIT;
  client.socket = options->socket;
  client.name = "llama.cpp";
  client.log = options->log;
  client.log_user = options->log_user;
  kvt_code code = kvt_pool_new(&ns, &shape, &k->pool);
  if (code == KVT_OK) code = kvt_client_start(&client, &k->client);
  if (code == KVT_OK) code = kvt_cache_open(k->client, &ns, &k->cache);
  return passed_on(code);
}

static kvt_code take_staging(kvl* k, size_t bytes) {
  k->page_stride = (k->block_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  const size_t pages = bytes / k->page_stride;
  k->pages = pages == 0 ? 1 : pages > 1 << 20 ? 1 << 20 : (uint32_t)pages;
  k->staging = aligned_alloc(ALIGNMENT, k->pages * k->page_stride);
  k->free_pages = malloc(k->pages * sizeof *k->free_pages);
  if (k->staging == NULL || k->free_pages == NULL)
    return fail(KVT_NO_SPACE, "no memory for %u blocks of %zu bytes", k->pages, k->page_stride);
  while (k->free_count < k->pages) {
    k->free_pages[k->free_count] = k->pages - 1 - k->free_count;
    ++k->free_count;
  }
  return KVT_OK;
}

kvt_code kvl_open(struct llama_context* context, const struct llama_context_params* params,
                  const kvl_options* options, kvl** k) {
  *k = NULL;
  char head[2 * HEAD_BYTES + 1];
  kvt_code code = check_context(context, options);
  if (code != KVT_OK) return code;
  kvl* opened = calloc(1, sizeof *opened);
  if (opened == NULL) return fail(KVT_NO_SPACE, "no memory");
  opened->context = context;
  opened->memory = llama_get_memory(context);
  opened->aside = (llama_seq_id)llama_n_seq_max(context) - 1;
  opened->block_tokens = options->block_tokens;
  code = measure(opened, head);
  if (code == KVT_OK && opened->block_bytes > UINT32_MAX)
    code = fail(KVT_INVALID, "a block of %u tokens has %zu bytes: make it smaller",
                opened->block_tokens, opened->block_bytes);
  if (code == KVT_OK) code = take_staging(opened, options->staging_bytes);
  if (code == KVT_OK) code = open_cache(opened, params, options, head);
  if (code != KVT_OK) {
    kvl_close(opened);
    return code;
  }
  *k = opened;
  return KVT_OK;
}

static void end_oldest(kvl* k) {
  saving* oldest = k->first;
  kvt_write_back_free(oldest->write);
  for (uint32_t i = 0; i < oldest->count; ++i) k->free_pages[k->free_count++] = oldest->pages[i];
  k->first = oldest->next;
  if (k->first == NULL) k->last = NULL;
  free(oldest);
}

void kvl_close(kvl* k) {
  if (k == NULL) return;
  while (k->first != NULL) end_oldest(k);
  kvt_cache_free(k->cache);
  kvt_client_free(k->client);
  kvt_pool_free(k->pool);
  free(k->free_pages);
  free(k->staging);
  free(k);
}

size_t kvl_block_bytes(const kvl* k) {
  return k->block_bytes;
}

kvt_code kvl_wait_open(kvl* k, int64_t deadline) {
  return passed_on(kvt_cache_wait_open(k->cache, deadline));
}

void kvl_get_stats(const kvl* k, kvl_stats* stats) {
  *stats = k->stats;
}

static kvt_prefix* prefix_of(kvl* k, const llama_token* tokens, size_t count) {
  kvt_prefix* prefix = NULL;
  if (kvt_prefix_new(k->cache, &prefix) != KVT_OK) return NULL;
  if (kvt_prefix_append(prefix, (const uint32_t*)tokens, count) == KVT_OK) return prefix;
  kvt_prefix_free(prefix);
  return NULL;
}

static uint32_t cached_blocks(kvl* k, const kvt_prefix* prefix) {
  kvt_match match = KVT_MATCH_INIT;
  if (kvt_cache_match(k->cache, prefix, &match) != KVT_OK) return 0;
  return match.blocks -
         match.remote; /* what is remote alone is the tail as a rule, and goes to this host too */
}

/* With what the daemon's remote tier has, where it has one. */
static uint32_t blocks_to_restore(kvl* k, const kvt_prefix* prefix, int64_t deadline) {
  kvt_match match = KVT_MATCH_INIT;
  return kvt_cache_look_up(k->cache, prefix, deadline, &match) == KVT_OK ? match.blocks : 0;
}

static kvt_pages pages_of(const kvl* k, const uint32_t* numbers, uint32_t count) {
  kvt_pages pages = KVT_PAGES_INIT;
  pages.pool = k->pool;
  pages.numbers = numbers;
  pages.numbers_count = count;
  return pages;
}

/* ---- Restoring ---- */

/* Brings blocks first .. end - 1 to the pages `numbers`; returns how many leading ones held. */
static uint32_t bring(kvl* k, const kvt_prefix* prefix, uint32_t first, uint32_t end,
                      const uint32_t* numbers, int64_t deadline) {
  kvt_lease* lease = NULL;
  kvt_load* load = NULL;
  uint32_t good = 0;
  if (kvt_lease_take(k->cache, prefix, first, end, deadline, &lease) == KVT_OK) {
    const uint32_t ready = kvt_lease_wait_ready(lease, deadline);
    const kvt_pages pages = pages_of(k, numbers, ready);
    if (ready > 0 && kvt_load_start(lease, &pages, NULL, &load) == KVT_OK)
      if (kvt_load_finish(load, deadline, &good) != KVT_OK) good = 0;
    kvt_load_free(load); /* waits for the copies: the pages are ours again */
  }
  kvt_lease_free(lease);
  return good;
}

size_t kvl_restore(kvl* k, llama_seq_id sequence, const llama_token* tokens, size_t count,
                   int64_t deadline) {
  const size_t held = (size_t)(llama_memory_seq_pos_max(k->memory, sequence) + 1);
  kvt_prefix* prefix = prefix_of(k, tokens, count);
  const uint32_t cached = prefix == NULL ? 0 : blocks_to_restore(k, prefix, deadline);
  const uint32_t begun = (uint32_t)(held / k->block_tokens);
  uint32_t block = begun;
  bool more = block < cached;
  if (more) {
    kvt_hint hint = KVT_HINT_INIT;
    kvt_cache_hint(k->cache, prefix, block, cached, &hint);
  }
  while (more && block < cached) {
    while (k->free_count == 0 && k->first != NULL) end_oldest(k);
    const uint32_t most = cached - block < k->free_count ? cached - block : k->free_count;
    const uint32_t* numbers = k->free_pages + k->free_count - most;
    const uint32_t good = bring(k, prefix, block, block + most, numbers, deadline);
    /* What the sequence had of the first of them comes anew. */
    if (block == begun && good > 0)
      llama_memory_seq_rm(k->memory, sequence, position(k, block), -1);
    more = good == most;
    for (uint32_t i = 0; i < good; ++i, ++block) {
      if (put_in(k, sequence, block, k->staging + numbers[i] * k->page_stride)) continue;
      ++k->stats.refused;
      more = false;
      break;
    }
  }
  kvt_prefix_free(prefix);
  k->stats.restored += block - begun;
  return (size_t)(llama_memory_seq_pos_max(k->memory, sequence) + 1);
}

/* ---- Saving ---- */

static void end_those_that_have_ended(kvl* k) {
  while (k->first != NULL && kvt_write_back_ended(k->first->write)) end_oldest(k);
}

/* Whether there is a page by `deadline`. */
static bool wait_for_a_page(kvl* k, int64_t deadline) {
  end_those_that_have_ended(k);
  while (k->free_count == 0 && k->first != NULL) {
    if (kvt_write_back_wait(k->first->write, deadline) != KVT_OK) return false;
    end_oldest(k);
  }
  return k->free_count > 0;
}

/* Offers the blocks from `first` on whose states lie in pages taken for `it`. */
static void offer(kvl* k, const kvt_prefix* prefix, uint32_t first, saving* it) {
  const kvt_pages pages = pages_of(k, it->pages, it->count);
  if (it->count == 0 || kvt_write_back_start(k->cache, prefix, first, &pages, NULL,
                                             kvt_after(SLOTS_WITHIN_NS), &it->write) != KVT_OK) {
    k->stats.unsaved += it->count;
    while (it->count > 0) k->free_pages[k->free_count++] = it->pages[--it->count];
    free(it);
    return;
  }
  k->stats.offered += it->count;
  if (k->last != NULL) {
    k->last->next = it;
  } else {
    k->first = it;
  }
  k->last = it;
}

/* Saves blocks from `first` on, as many as there are pages for; returns how many it took. */
static uint32_t save_some(kvl* k, llama_seq_id sequence, const kvt_prefix* prefix, uint32_t first,
                          uint32_t most) {
  saving* it = calloc(1, sizeof *it + most * sizeof it->pages[0]);
  if (it == NULL) return 0;
  bool whole = true;
  while (whole && it->count < most) {
    const uint32_t page = k->free_pages[k->free_count - 1];
    whole = take_out(k, sequence, first + it->count, k->staging + page * k->page_stride);
    if (!whole) break;
    --k->free_count;
    it->pages[it->count++] = page;
  }
  const uint32_t taken = it->count;
  if (!whole) ++k->stats.refused;
  offer(k, prefix, first, it);
  return taken;
}

kvt_code kvl_save(kvl* k, llama_seq_id sequence, const llama_token* tokens, size_t count,
                  int64_t deadline) {
  if (count == 0) return KVT_OK;
  if (llama_memory_seq_pos_min(k->memory, sequence) != 0 ||
      llama_memory_seq_pos_max(k->memory, sequence) < (llama_pos)(count - 1))
    return fail(KVT_INVALID, "sequence %d holds positions %d to %d, not the first %zu", sequence,
                llama_memory_seq_pos_min(k->memory, sequence),
                llama_memory_seq_pos_max(k->memory, sequence), count);
  kvt_prefix* prefix = prefix_of(k, tokens, count);
  if (prefix == NULL) return passed_on(KVT_INVALID);
  const uint32_t end = kvt_prefix_blocks(prefix);
  uint32_t block = cached_blocks(k, prefix);
  while (block < end && wait_for_a_page(k, deadline)) {
    const uint32_t most = end - block < k->free_count ? end - block : k->free_count;
    const uint32_t taken = save_some(k, sequence, prefix, block, most);
    block += taken;
    if (taken < most) break;
  }
  k->stats.unsaved += end - block;
  kvt_prefix_free(prefix);
  return KVT_OK;
}

kvt_code kvl_flush(kvl* k, int64_t deadline) {
  while (k->first != NULL) {
    const kvt_code code = kvt_write_back_wait(k->first->write, deadline);
    if (code != KVT_OK) return passed_on(code);
    end_oldest(k);
  }
  return passed_on(kvt_client_flush(k->client, deadline));
}
