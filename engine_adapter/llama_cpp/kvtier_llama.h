/* llama.cpp's KV kept by kvtier: a sequence's state saved and restored by the blocks of its prefix.
 *
 *   kvl_open -> kvl_restore -> llama_decode of what is left -> kvl_save -> ... -> kvl_close
 *
 * llama.cpp gives a sequence's state away as one opaque piece, llama_state_seq_get_data(). Of a
 * memory that keeps a cell for every token it can be cut all the same: the cells of a block's
 * positions are copied to a sequence of their own, which copies no memory, and that sequence's
 * state is the block. It comes back the same way. So the bytes are llama.cpp's own, bit for bit,
 * and no patch to it is needed (docs/llama_cpp.md).
 *
 * What a context must be, else kvl_open() refuses it: unified (kv_unified, or all sequences would
 * have memory of their own), with n_seq_max of at least 2, the last of which is this library's; of
 * a decoder without a sliding window and without recurrent layers, whose tokens alone decide its
 * states: no images, no embeddings for tokens. Token i of a sequence stands at position i.
 *
 * Errors. A kvt_code; kvl_error() is then the text of the calling thread's last failure.
 * Threads. One at a time for all that is of one context, llama.cpp's functions included. */
#ifndef KVTIER_LLAMA_H
#define KVTIER_LLAMA_H

#include <kvtier/kvtier.h>
#include <llama.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvl kvl;

typedef struct kvl_options {
  const char* socket;    /* NULL: /run/kvtier/kvtierd.sock */
  const char* model;     /* names the weights, e.g. by kvl_model_of_file() */
  const char* adapter;   /* names LoRA adapters and control vectors in use; NULL: none */
  const char* tenant;    /* NULL: none */
  uint32_t block_tokens; /* 1 to 1,024 */
  size_t staging_bytes;  /* of memory for blocks on their way; at least a block is taken */
  kvt_log_sink log;      /* NULL: none */
  void* log_user;
} kvl_options;
/* clang-format off */
#define KVL_OPTIONS_INIT {NULL, NULL, NULL, NULL, 64, (size_t)256 << 20, NULL, NULL}
/* clang-format on */

typedef struct kvl_stats {
  uint64_t restored; /* blocks */
  uint64_t offered;  /* blocks given to the client to be saved */
  uint64_t unsaved;  /* blocks for which there was no memory in time */
  uint64_t refused;  /* blocks that llama.cpp did not take, or did not give */
} kvl_stats;

const char* kvl_error(void);

/* "llama.gguf@" and the XXH3-128 of the file's bytes, which it reads, into `text`. Errors: KVT_IO,
 * KVT_NO_SPACE (`capacity`). */
kvt_code kvl_model_of_file(const char* path, char* text, size_t capacity);

/* `params`: those that made `context`. Decodes two tokens in the last sequence, which must be empty
 * and stay so, to learn how large a block's state is. Does not wait for the daemon: until it is
 * there, all is a miss. Errors: KVT_INVALID, saying what of the context or of the options does not
 * do. */
kvt_code kvl_open(struct llama_context* context, const struct llama_context_params* params,
                  const kvl_options* options, kvl** k);
/* Waits for copies in memory. Sequences stay as they are. */
void kvl_close(kvl* k);

/* Bytes of a block's state, which is what its record holds. */
size_t kvl_block_bytes(const kvl* k);
/* KVT_OK: connected, and the namespace is open. */
kvt_code kvl_wait_open(kvl* k, int64_t deadline);

/* Puts blocks of the prefix `tokens` into the sequence, as many as are cached and arrive by
 * `deadline`. It holds nothing, or the first of these tokens. The block of the last token is never
 * among them. Returns how many leading tokens the sequence now holds: what comes next is to be
 * decoded. */
size_t kvl_restore(kvl* k, llama_seq_id sequence, const llama_token* tokens, size_t count,
                   int64_t deadline);

/* Offers the whole blocks among `tokens`, all of which the sequence holds. Copies them here, then
 * returns; the daemon gets them meanwhile. With more blocks than staging_bytes hold it waits for
 * earlier ones until `deadline`; then the rest is left out, and counted. Errors: KVT_INVALID, the
 * sequence does not hold these tokens. */
kvt_code kvl_save(kvl* k, llama_seq_id sequence, const llama_token* tokens, size_t count,
                  int64_t deadline);
/* Waits until what was offered is committed and, where the disk admits it, durable. */
kvt_code kvl_flush(kvl* k, int64_t deadline);

void kvl_get_stats(const kvl* k, kvl_stats* stats);

#ifdef __cplusplus
}
#endif

#endif
