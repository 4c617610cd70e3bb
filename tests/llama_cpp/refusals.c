/* What kvl_open() and kvl_save() refuse, and why: refusals MODEL.gguf */
#include <kvtier_llama.h>
#include <stdio.h>
#include <string.h>

static int failures;

static struct llama_context* context_of(struct llama_model* model, uint32_t sequences, bool unified,
                                        struct llama_context_params* params) {
  *params = llama_context_default_params();
  params->n_ctx = 512;
  params->n_seq_max = sequences;
  params->kv_unified = unified;
  return llama_init_from_model(model, *params);
}

static void expect(kvt_code got, kvt_code wanted, const char* why) {
  if (got == wanted && strstr(kvl_error(), why) != NULL) return;
  fprintf(stderr, "%s and \"%s\" in place of %s and \"%s\"\n", kvt_code_name(got), kvl_error(),
          kvt_code_name(wanted), why);
  ++failures;
}

static void refused(struct llama_model* model, uint32_t sequences, bool unified,
                    kvl_options options, const char* why) {
  struct llama_context_params params;
  struct llama_context* context = context_of(model, sequences, unified, &params);
  kvl* k = NULL;
  expect(kvl_open(context, &params, &options, &k), KVT_INVALID, why);
  if (k != NULL) ++failures;
  kvl_close(k);
  llama_free(context);
}

static void unopened(struct llama_model* model, const char* path) {
  char name[64];
  kvl_options options = KVL_OPTIONS_INIT;
  options.socket = "/nonexistent/socket";
  expect(kvl_model_of_file("/nonexistent", name, sizeof name), KVT_IO, "/nonexistent");
  expect(kvl_model_of_file(path, name, 8), KVT_NO_SPACE, "44 bytes");
  refused(model, 2, true, options, "options.model");
  if (kvl_model_of_file(path, name, sizeof name) != KVT_OK) ++failures;
  options.model = name;
  refused(model, 1, true, options, "n_seq_max");
  refused(model, 2, false, options, "kv_unified");
  options.block_tokens = 0;
  refused(model, 2, true, options, "block_tokens is 0");
  options.block_tokens = 1025;
  refused(model, 2, true, options, "block_tokens is 1025");
}

/* Without a daemon all is a miss, and sequences are as before. */
static void alone(struct llama_model* model, const char* path) {
  char name[64];
  kvl_options options = KVL_OPTIONS_INIT;
  options.socket = "/nonexistent/socket";
  options.model = name;
  options.block_tokens = 4;
  struct llama_context_params params;
  struct llama_context* context = context_of(model, 3, true, &params);
  kvl* k = NULL;
  if (kvl_model_of_file(path, name, sizeof name) != KVT_OK ||
      kvl_open(context, &params, &options, &k) != KVT_OK) {
    fprintf(stderr, "%s\n", kvl_error());
    ++failures;
    return;
  }
  llama_token tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  if (kvl_restore(k, 0, tokens, 10, kvt_after(0)) != 0) ++failures;
  expect(kvl_save(k, 0, tokens, 10, kvt_after(0)), KVT_INVALID, "holds positions -1 to -1");
  if (llama_decode(context, llama_batch_get_one(tokens, 10)) != 0) ++failures;
  expect(kvl_save(k, 0, tokens, 11, kvt_after(0)), KVT_INVALID, "holds positions 0 to 9");
  if (kvl_save(k, 0, tokens, 10, kvt_after(0)) != KVT_OK) ++failures;
  if (kvl_restore(k, 0, tokens, 10, kvt_after(0)) != 10) ++failures;
  const llama_memory_t memory = llama_get_memory(context);
  if (llama_memory_seq_pos_max(memory, 0) != 9 || llama_memory_seq_pos_max(memory, 2) != -1)
    ++failures;
  kvl_close(k);
  /* The last sequence is the library's own. */
  llama_memory_seq_cp(memory, 0, 2, 0, 5);
  expect(kvl_open(context, &params, &options, &k), KVT_INVALID, "sequence 2 is not empty");
  llama_free(context);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  llama_backend_init();
  struct llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == NULL) return 1;
  unopened(model, argv[1]);
  alone(model, argv[1]);
  llama_model_free(model);
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
