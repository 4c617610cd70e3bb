/* libkvtier in C: how an engine keeps its KV beyond its own memory. Plain C11; no CUDA header is
 * needed. kvtier/client.h says the same in C++, and more of why.
 *
 * In the order of use:
 *
 *   kvt_client_start -> kvt_cache_open -> kvt_prefix_new, kvt_prefix_append -> kvt_cache_match ->
 *   kvt_lease_take -> kvt_lease_wait_ready -> kvt_load_start -> kvt_load_finish
 *   kvt_write_back_start -> kvt_write_back_wait -> kvt_client_flush
 *
 * Errors. What can fail returns a kvt_code. kvt_error() is then its text, of the calling thread's
 * last failure.
 *
 * Structs begin with their size, which their _INIT sets: a library that knows more fields takes
 * those that an older program does not know as unset, and one that knows fewer refuses a program
 * that sets them. In an array of structs the size of the first is that of all. What a struct points
 * to is read in the call and belongs to the caller, pages excepted.
 *
 * Handles. Who gets one frees it, once; freeing NULL does nothing, and no other function is given
 * a handle that is NULL. They may be freed in any order.
 * Threads and waiting are as in kvtier/client.h: clients and caches are for any number of threads,
 * the others for one at a time but for the functions that say "any thread"; what waits for the
 * daemon takes a deadline. Freeing a load or a write-back waits for copies in memory. Of a forked
 * process's handles everything is a miss in the child.
 *
 * Deadlines are nanoseconds of CLOCK_MONOTONIC; kvt_after() makes one.
 */
#ifndef KVTIER_KVTIER_H
#define KVTIER_KVTIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every function or field that is added. */
#define KVT_API 2

typedef enum kvt_code {
  KVT_OK = 0,
  KVT_UNAVAILABLE = 1, /* no daemon there, or the connection ended */
  KVT_DEADLINE = 2,    /* the deadline passed first */
  KVT_REFUSED = 3,     /* the daemon understood and said no */
  KVT_MALFORMED = 4,   /* bytes that do not follow their format */
  KVT_VERSION = 5,     /* the daemon speaks another version */
  KVT_INVALID = 6,     /* an argument is out of its range */
  KVT_NOT_FOUND = 7,
  KVT_NO_SPACE = 8, /* a cap or a bounded queue is full */
  KVT_IO = 9,       /* the kernel or a device failed */
  KVT_CORRUPT = 10, /* header, proof or checksum does not hold */
  KVT_STALE = 11    /* a lease ended before its copy did */
} kvt_code;

typedef enum kvt_tier {
  KVT_TIER_DEVICE = 0,
  KVT_TIER_HOST = 1,
  KVT_TIER_DISK = 2,
  KVT_TIER_REMOTE = 3 /* a store that hosts share */
} kvt_tier;
/* Of a host; the remote one has fields of its own. */
#define KVT_TIERS 3

typedef enum kvt_format {
  KVT_FORMAT_FP8_E4M3 = 1,
  KVT_FORMAT_FP8_E5M2 = 2,
  KVT_FORMAT_BF16 = 3,
  KVT_FORMAT_F32 = 4,
  KVT_FORMAT_RAW = 5, /* the bytes of the engine's pages */
  KVT_FORMAT_INT8 = 6,
  KVT_FORMAT_INT4 = 7
} kvt_format;

/* Of the numbers in an engine's pages. */
typedef enum kvt_dtype { KVT_DTYPE_F32 = 0, KVT_DTYPE_F16 = 1, KVT_DTYPE_BF16 = 2 } kvt_dtype;

typedef enum kvt_drop_reason {
  KVT_DROP_NO_SLOT = 0,      /* no room in time */
  KVT_DROP_QUEUE_FULL = 1,   /* too much was queued already */
  KVT_DROP_DISCONNECTED = 2, /* no connection, or it ended, or the client closed */
  KVT_DROP_FAILED = 3        /* pages or GPU not usable, or the client may only read */
} kvt_drop_reason;
#define KVT_DROP_REASONS 4

typedef struct kvt_client kvt_client;
typedef struct kvt_cache kvt_cache;
typedef struct kvt_prefix kvt_prefix;
typedef struct kvt_pool kvt_pool;
typedef struct kvt_lease kvt_lease;
typedef struct kvt_load kvt_load;
typedef struct kvt_write_back kvt_write_back;
typedef struct kvt_layer_store kvt_layer_store;

/* "0.1.0", of the library that is loaded. */
const char* kvt_version(void);
/* KVT_API of the library that is loaded. */
uint32_t kvt_api(void);
/* What client and daemon must have in common. */
uint32_t kvt_protocol_version(void);

/* "unavailable", "deadline", ... */
const char* kvt_code_name(kvt_code code);
/* Says what, where, and the mend where there is one. Good until the next failure in this thread. */
const char* kvt_error(void);

#define KVT_NEVER INT64_MAX
/* The deadline that is `ns` from now. */
int64_t kvt_after(int64_t ns);

/* ---- Namespaces: what must be equal for the KV of two engines to be interchangeable ---- */

/* What one layer keeps of a block. */
typedef struct kvt_layer_shape {
  size_t size;
  uint32_t kv_heads;
  uint32_t head_dim_k;
  uint32_t head_dim_v; /* 0: K alone */
  kvt_format format;
  uint32_t raw_bytes; /* KVT_FORMAT_RAW: of a block */
} kvt_layer_shape;
#define KVT_LAYER_SHAPE_INIT \
  { sizeof(kvt_layer_shape), 0, 0, 0, KVT_FORMAT_FP8_E4M3, 0 }

/* As kvtier::Namespace (kvtier/namespace.h). A text that is NULL is empty. */
typedef struct kvt_namespace {
  size_t size;
  const char* model;
  const char* adapter;
  const char* tenant;
  const char* positions;
  const char* page_layout; /* KVT_FORMAT_RAW: what the bytes mean */
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t head_dim_k;
  uint32_t head_dim_v;
  uint32_t block_tokens;
  kvt_format format;
  uint32_t rank;
  uint32_t ranks;
  uint32_t raw_bytes;
  uint32_t extra_bytes_max;
  uint32_t digest_bytes;
  const kvt_layer_shape* layer_shapes; /* where layers differ: one for each; else NULL */
  size_t layer_shapes_count;
} kvt_namespace;
/* clang-format off */
#define KVT_NAMESPACE_INIT \
  {sizeof(kvt_namespace), NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 16, KVT_FORMAT_FP8_E4M3, 0, 1, \
   0, 0, 0, NULL, 0}
/* clang-format on */

/* Errors: KVT_INVALID, naming the field, its value and its range. */
kvt_code kvt_namespace_id(const kvt_namespace* ns, uint8_t id[16]);

/* Bytes of a record, the form in which a block is stored. */
typedef struct kvt_record_layout {
  size_t size;
  uint32_t layers;
  uint32_t block_tokens;
  size_t header_bytes; /* where the payload begins */
  size_t payload_bytes;
  size_t record_bytes;
} kvt_record_layout;
#define KVT_RECORD_LAYOUT_INIT \
  { sizeof(kvt_record_layout), 0, 0, 0, 0, 0 }

/* ---- Client ---- */

typedef enum kvt_log_level {
  KVT_LOG_ERROR = 0,
  KVT_LOG_WARNING = 1,
  KVT_LOG_INFO = 2,
  KVT_LOG_DEBUG = 3
} kvt_log_level;

/* One line. Comes on any thread, on several at a time; does not wait, nor call into kvtier. */
typedef void (*kvt_log_sink)(void* user, kvt_log_level level, const char* line);

typedef struct kvt_client_options {
  size_t size;
  const char* socket;  /* NULL: /run/kvtier/kvtierd.sock */
  const char* name;    /* NULL: "client" */
  int32_t cuda_device; /* -1: pages are in host memory */
  bool read_only;
  bool verify_loads;
  uint32_t slots_ahead;            /* reserved slots at hand, per namespace and tier */
  uint32_t write_backs_queued_max; /* blocks */
  int64_t reconnect_delay_max_ns;
  int64_t slot_wait_ns; /* how long a write-back waits for slots that it has not */
  kvt_log_sink log;     /* NULL: none */
  void* log_user;
  kvt_log_level log_level;
} kvt_client_options;
/* clang-format off */
#define KVT_CLIENT_OPTIONS_INIT \
  {sizeof(kvt_client_options), NULL, NULL, -1, false, false, 64, 1024, 500000000, 0, NULL, NULL, \
   KVT_LOG_INFO}
/* clang-format on */

/* Starts connecting and returns at once. */
kvt_code kvt_client_start(const kvt_client_options* options, kvt_client** client);
/* Ends its threads, unless a cache of it is still open: then with the last of those. */
void kvt_client_free(kvt_client* client);
bool kvt_client_connected(const kvt_client* client);
kvt_code kvt_client_wait_connected(kvt_client* client, int64_t deadline);
/* Waits until all that was written back is committed and, where the disk admits it, durable. */
kvt_code kvt_client_flush(kvt_client* client, int64_t deadline);

typedef struct kvt_stats {
  size_t size;
  uint64_t blocks_looked_up;
  uint64_t hits[KVT_TIERS];
  uint64_t misses;
  uint64_t faults;
  uint64_t leases_lost;
  uint64_t blocks_written;
  uint64_t blocks_dropped;
  uint64_t dropped[KVT_DROP_REASONS];
  uint64_t deadlines_missed;
  uint64_t connects;
  uint64_t remote_hits;
} kvt_stats;
#define KVT_STATS_INIT \
  { sizeof(kvt_stats), 0, {0}, 0, 0, 0, 0, 0, {0}, 0, 0, 0 }
kvt_code kvt_client_stats(const kvt_client* client, kvt_stats* stats);

/* ---- Cache: a namespace as an engine uses it ---- */

/* Opens it in the background; kvt_cache_state() says what came of it. Errors: KVT_INVALID. */
kvt_code kvt_cache_open(kvt_client* client, const kvt_namespace* ns, kvt_cache** cache);
void kvt_cache_free(kvt_cache* cache);
/* KVT_OK: open. Else why not (yet). */
kvt_code kvt_cache_state(const kvt_cache* cache);
/* Waits until it is open or refused. */
kvt_code kvt_cache_wait_open(kvt_cache* cache, int64_t deadline);
kvt_code kvt_cache_layout(const kvt_cache* cache, kvt_record_layout* layout);

/* ---- Prefix: a sequence as a namespace sees it ---- */

kvt_code kvt_prefix_new(const kvt_cache* cache, kvt_prefix** prefix);
/* Where a sequence branches. */
kvt_code kvt_prefix_copy(const kvt_prefix* prefix, kvt_prefix** copy);
void kvt_prefix_free(kvt_prefix* prefix);
kvt_code kvt_prefix_append(kvt_prefix* prefix, const uint32_t* tokens, size_t count);
/* In a namespace with digest_bytes: the next block, by the engine's own digest. */
kvt_code kvt_prefix_append_digest(kvt_prefix* prefix, const void* digest, size_t bytes);
/* Tokens first .. end - 1 stand for `bytes` besides: they become part of their blocks' identity.
 * Before the first of those blocks is complete. */
kvt_code kvt_prefix_cover(kvt_prefix* prefix, size_t first, size_t end, const void* bytes,
                          size_t count);
/* So many tokens are to be generated behind it, as far as the engine can say; 0, as at first: not
 * told. It goes with the blocks that are stored from then on: it says how likely they are to be
 * used again. */
void kvt_prefix_expect_answer(kvt_prefix* prefix, uint32_t tokens);
kvt_code kvt_prefix_truncate(kvt_prefix* prefix, size_t tokens);
size_t kvt_prefix_tokens(const kvt_prefix* prefix);
uint32_t kvt_prefix_blocks(const kvt_prefix* prefix);
uint32_t kvt_prefix_blocks_matchable(const kvt_prefix* prefix);
/* Errors: KVT_INVALID, without such a block. */
kvt_code kvt_prefix_key(const kvt_prefix* prefix, uint32_t block, uint8_t key[16]);

/* ---- Pools: an engine's KV memory, described once ---- */

/* K or V of one layer. Strides are in bytes. */
typedef struct kvt_pool_side {
  size_t size;
  void* base;   /* NULL: the layer has no such side */
  size_t bytes; /* of memory from `base` on that belongs to the pool */
  size_t page_stride;
  size_t token_stride;
  size_t head_stride;
  uint32_t rows; /* KVT_FORMAT_RAW: a page is so many pieces */
  size_t row_bytes;
  size_t row_stride;
} kvt_pool_side;
#define KVT_POOL_SIDE_INIT \
  { sizeof(kvt_pool_side), NULL, 0, 0, 0, 0, 0, 0, 0 }

typedef struct kvt_pool_shape {
  size_t size;
  kvt_dtype type;
  uint32_t pages;
  uint32_t page_tokens; /* divides block_tokens; 0: a block */
  uint32_t layers;
  const kvt_pool_side* k; /* one a layer */
  const kvt_pool_side* v; /* likewise, or NULL: there is none */
} kvt_pool_shape;
#define KVT_POOL_SHAPE_INIT \
  { sizeof(kvt_pool_shape), KVT_DTYPE_BF16, 0, 0, 0, NULL, NULL }

/* The memory stays the engine's. Errors: KVT_INVALID, naming layer and side. */
kvt_code kvt_pool_new(const kvt_namespace* ns, const kvt_pool_shape* shape, kvt_pool** pool);
void kvt_pool_free(kvt_pool* pool);
uint32_t kvt_pool_pages_of_block(const kvt_pool* pool);

/* What a load or a write-back names of the engine's memory; exactly one of the three forms. The
 * memory is not touched while it is in progress; the arrays here may go after the call. */
typedef struct kvt_pages {
  size_t size;
  void* const* records; /* record_bytes each */
  size_t records_count;
  bool in_place; /* a load need not copy what lies in the client's own GPU */
  const kvt_pool* pool;
  const uint32_t* numbers; /* those of a block, then of the next */
  size_t numbers_count;
  void* const* k_pages; /* [layer * blocks + block] -> [kv_heads][block_tokens][head_dim] */
  size_t k_pages_count;
  void* const* v_pages;
  size_t v_pages_count;
  kvt_dtype type; /* of k_pages and v_pages */
} kvt_pages;
#define KVT_PAGES_INIT \
  { sizeof(kvt_pages), NULL, 0, false, NULL, NULL, 0, NULL, 0, NULL, 0, KVT_DTYPE_F32 }

/* ---- Reading ---- */

typedef struct kvt_match {
  size_t size;
  uint32_t blocks;
  uint32_t per_tier[KVT_TIERS];
  uint32_t remote; /* of the blocks, those that are in the remote tier alone */
} kvt_match;
/* clang-format off */
#define KVT_MATCH_INIT {sizeof(kvt_match), 0, {0}, 0}
/* clang-format on */

/* How many leading blocks are cached, and where: advisory, at the cost of a look into memory. */
kvt_code kvt_cache_match(const kvt_cache* cache, const kvt_prefix* prefix, kvt_match* match);

/* The same once kvtierd has asked its remote tier for what it does not know of the prefix, which
 * takes it some milliseconds at most. Waits until `deadline` at most, and for nothing where there
 * is no such tier. What could not be asked is a miss. */
kvt_code kvt_cache_look_up(kvt_cache* cache, const kvt_prefix* prefix, int64_t deadline,
                           kvt_match* match);

typedef enum kvt_lease_state {
  KVT_LEASE_ASKED = 0,    /* not answered yet */
  KVT_LEASE_ARRIVING = 1, /* blocks are on their way to memory */
  KVT_LEASE_SETTLED = 2,  /* every granted block is in memory or has failed */
  KVT_LEASE_LOST = 3      /* kvt_lease_error() says why */
} kvt_lease_state;

/* Holds blocks first .. end - 1 up to the first that is gone, and starts bringing those on disk to
 * memory. */
kvt_code kvt_lease_take(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first, uint32_t end,
                        int64_t deadline, kvt_lease** lease);
/* The same without waiting; kvt_lease_event_fd() and kvt_lease_on_settled() tell when it is settled
 * or lost, at the latest at the deadline. */
kvt_code kvt_lease_async(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first, uint32_t end,
                         int64_t deadline, kvt_lease** lease);
/* Releases it. Never waits. */
void kvt_lease_free(kvt_lease* lease);
void kvt_lease_release(kvt_lease* lease);
/* Any thread. */
kvt_lease_state kvt_lease_get_state(const kvt_lease* lease);
/* Any thread. KVT_OK: it is not lost. */
kvt_code kvt_lease_error(const kvt_lease* lease);
/* Any thread. */
bool kvt_lease_held(const kvt_lease* lease);
uint32_t kvt_lease_blocks(const kvt_lease* lease);
/* Errors: KVT_INVALID, without such a block. */
kvt_code kvt_lease_source(const kvt_lease* lease, uint32_t block, kvt_tier* tier);
/* Any thread. The leading blocks that are in memory, once all are or the deadline has passed. */
uint32_t kvt_lease_wait_ready(kvt_lease* lease, int64_t deadline);
/* Readable once settled or lost. The lease's own: neither read from nor closed. */
kvt_code kvt_lease_event_fd(kvt_lease* lease, int* fd);
/* Called once, when the descriptor becomes readable, on the client's thread or in this call. It
 * returns soon and waits for nothing in kvtier. After kvt_lease_free() it is not begun. */
kvt_code kvt_lease_on_settled(kvt_lease* lease, void (*callback)(void* user), void* user);

/* `stream`: the engine's CUDA stream, NULL on the CPU. */
kvt_code kvt_load_start(kvt_lease* lease, const kvt_pages* pages, void* stream, kvt_load** load);
void kvt_load_free(kvt_load* load);
/* Leading blocks whose header and proof held. */
uint32_t kvt_load_blocks(const kvt_load* load);
size_t kvt_load_faults(const kvt_load* load);
/* Why block `*block` did not hold. `fault` < kvt_load_faults(), else KVT_INVALID. */
kvt_code kvt_load_fault(const kvt_load* load, size_t fault, uint32_t* block);
/* Where block `block` is to be attended to, for pages of records; NULL otherwise. */
void* kvt_load_record(const kvt_load* load, uint32_t block);
/* After it, the layer is in the pages for work on `stream`. Errors: KVT_INVALID, no such layer. */
kvt_code kvt_load_wait_layer(kvt_load* load, uint32_t layer, void* stream);
/* Any thread. */
bool kvt_load_ended(const kvt_load* load);
/* Waits for the copies. KVT_OK: *blocks leading ones may be used; KVT_DEADLINE: they go on. */
kvt_code kvt_load_finish(kvt_load* load, int64_t deadline, uint32_t* blocks);

/* ---- Writing ---- */

/* Offers complete blocks first_block, ... as many as `pages` holds. Never waits. `slots_by`: until
 * when a block waits for a free slot; 0: as the client's slot_wait_ns says. */
kvt_code kvt_write_back_start(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first_block,
                              const kvt_pages* pages, void* stream, int64_t slots_by,
                              kvt_write_back** write);
void kvt_write_back_free(kvt_write_back* write);
/* Any thread. KVT_OK: the pages are not read any more; KVT_DEADLINE: they may be. Before it, what
 * has no slot is given up where it was given no time to wait (slots_by, slot_wait_ns). */
kvt_code kvt_write_back_wait(kvt_write_back* write, int64_t deadline);
/* Any thread. Gives up what has no slot now. */
void kvt_write_back_hurry(kvt_write_back* write);
/* Any thread. */
bool kvt_write_back_ended(const kvt_write_back* write);

typedef struct kvt_write_back_result {
  size_t size;
  uint32_t accepted; /* went to the cache */
  uint32_t cached;   /* were there already */
  uint64_t dropped[KVT_DROP_REASONS];
} kvt_write_back_result;
/* clang-format off */
#define KVT_WRITE_BACK_RESULT_INIT {sizeof(kvt_write_back_result), 0, 0, {0}}
/* clang-format on */
/* KVT_OK, or why all of it was refused. Complete once it has ended. */
kvt_code kvt_write_back_get_result(const kvt_write_back* write, kvt_write_back_result* result);

/* The same layer by layer, as a prefill fills its pages. Nothing can be found before the commit. */
kvt_code kvt_layer_store_begin(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first_block,
                               const kvt_pages* pages, int64_t slots_by, kvt_layer_store** store);
/* Without a commit it leaves nothing behind. */
void kvt_layer_store_free(kvt_layer_store* store);
uint32_t kvt_layer_store_blocks(const kvt_layer_store* store);
/* The layer is in the pages: now, or after what is on `stream`. Each once, in any order. */
kvt_code kvt_layer_store_layer(kvt_layer_store* store, uint32_t layer, void* stream);
/* Once, after all layers; the store is then to be freed, and `*write` says what came of it. */
kvt_code kvt_layer_store_commit(kvt_layer_store* store, kvt_write_back** write);

/* ---- Hints: what is known of the time ahead. Never a promise ---- */

typedef enum kvt_hint_kind {
  KVT_HINT_PREFETCH = 0, /* a request will need these blocks soon */
  KVT_HINT_KEEP = 1,     /* they stay while others may go */
  KVT_HINT_DEMOTE = 2,   /* they will be needed, but not soon */
  KVT_HINT_ENDED = 3     /* the session whose prefix this is has ended */
} kvt_hint_kind;

/* As kvtier::Hint (kvtier/hint.h). */
typedef struct kvt_hint {
  size_t size;
  kvt_hint_kind kind;
  kvt_tier tier;     /* device or host */
  uint32_t priority; /* of a keep: 0 none, to 3 */
  int64_t keep_s;    /* of a keep: seconds */
} kvt_hint;
#define KVT_HINT_INIT \
  { sizeof(kvt_hint), KVT_HINT_PREFETCH, KVT_TIER_HOST, 0, 0 }

/* Of blocks first .. end - 1. Never waits; what came of it nobody is told. Errors: KVT_INVALID,
 * KVT_NO_SPACE (too many wait to be sent), KVT_UNAVAILABLE. */
kvt_code kvt_cache_hint(kvt_cache* cache, const kvt_prefix* prefix, uint32_t first, uint32_t end,
                        const kvt_hint* hint);

#ifdef __cplusplus
}
#endif

#endif
