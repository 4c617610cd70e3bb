/* kvtier-llama: answers prompts with llama.cpp, greedily, and keeps their KV in kvtierd. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtier_llama.h"

static const char usage[] =
    "Answers prompts with llama.cpp, greedily, and keeps their KV in kvtierd.\n"
    "\n"
    "Usage: kvtier-llama --model FILE [options] PROMPT_FILE...\n"
    "\n"
    "  --model FILE         GGUF file of a decoder without a sliding window or recurrent layers\n"
    "  --socket PATH        Of the daemon [/run/kvtier/kvtierd.sock]\n"
    "  --no-cache           Without a daemon\n"
    "  --tokens             Prompt files are token ids, and so are the answers\n"
    "  --answer N           Tokens of each answer [32]\n"
    "  --context N          Tokens, of a prompt with its answer [the model's, at most 8192]\n"
    "  --batch N            Tokens of a prompt that are computed at once [512]\n"
    "  --block-tokens N     Tokens of a block, 1 to 1024 [64]\n"
    "  --staging MIB        Memory for blocks on their way [256]\n"
    "  --adapter NAME       Names what changes the model beside its file [none]\n"
    "  --tenant NAME        Whose cache it is [none]\n"
    "  --threads N          [as llama.cpp]\n"
    "  --gpu-layers N       [as llama.cpp]\n"
    "  --flash-attention on|off  [on]\n"
    "  --deadline-ms N      How long a prompt waits for the cache, all in all [2000]\n"
    "  --json               A line of JSON for each prompt\n"
    "  --verbose            What llama.cpp and the client say\n"
    "\n"
    "Exit status: 0 all were answered; 1 one was not; 2 usage.\n";

#define MILLISECONDS(n) kvt_after((int64_t)(n)*1000000)

typedef struct options {
  const char* model;
  const char* socket;
  const char* adapter;
  const char* tenant;
  bool no_cache, ids, json, verbose, flash_attention;
  long answer, context, batch, block_tokens, staging, threads, gpu_layers, deadline_ms;
} options;

typedef struct list {
  llama_token* tokens;
  size_t count, capacity;
} list;

typedef struct run {
  options o;
  struct llama_model* model;
  const struct llama_vocab* vocab;
  struct llama_context* context;
  kvl* cache; /* NULL: none */
} run;

static int complain(const char* what, const char* why) {
  fprintf(stderr, "kvtier-llama: %s: %s\n", what, why);
  return 2;
}

static long number(const char* name, const char* text, long least, long most) {
  char* end = NULL;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (errno == 0 && end != text && *end == '\0' && value >= least && value <= most) return value;
  fprintf(stderr, "kvtier-llama: --%s %s: a number from %ld to %ld\n", name, text, least, most);
  exit(2);
}

static options parse(int argc, char** argv) {
  enum { CONTEXT = 256, BATCH, BLOCK, STAGING, THREADS, LAYERS, FLASH, DEADLINE };
  static const struct option known[] = {{"model", required_argument, NULL, 'm'},
                                        {"socket", required_argument, NULL, 's'},
                                        {"no-cache", no_argument, NULL, 'n'},
                                        {"tokens", no_argument, NULL, 't'},
                                        {"answer", required_argument, NULL, 'a'},
                                        {"context", required_argument, NULL, CONTEXT},
                                        {"batch", required_argument, NULL, BATCH},
                                        {"block-tokens", required_argument, NULL, BLOCK},
                                        {"staging", required_argument, NULL, STAGING},
                                        {"adapter", required_argument, NULL, 'l'},
                                        {"tenant", required_argument, NULL, 'T'},
                                        {"threads", required_argument, NULL, THREADS},
                                        {"gpu-layers", required_argument, NULL, LAYERS},
                                        {"flash-attention", required_argument, NULL, FLASH},
                                        {"deadline-ms", required_argument, NULL, DEADLINE},
                                        {"json", no_argument, NULL, 'j'},
                                        {"verbose", no_argument, NULL, 'v'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  options o = {.flash_attention = true,
               .answer = 32,
               .batch = 512,
               .block_tokens = 64,
               .staging = 256,
               .gpu_layers = -1,
               .deadline_ms = 2000};
  for (int c; (c = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
    switch (c) {
      case 'm':
        o.model = optarg;
        break;
      case 's':
        o.socket = optarg;
        break;
      case 'n':
        o.no_cache = true;
        break;
      case 't':
        o.ids = true;
        break;
      case 'a':
        o.answer = number("answer", optarg, 1, INT_MAX);
        break;
      case CONTEXT:
        o.context = number("context", optarg, 2, INT_MAX);
        break;
      case BATCH:
        o.batch = number("batch", optarg, 1, 1 << 20);
        break;
      case BLOCK:
        o.block_tokens = number("block-tokens", optarg, 1, 1024);
        break;
      case STAGING:
        o.staging = number("staging", optarg, 1, 1 << 20);
        break;
      case 'l':
        o.adapter = optarg;
        break;
      case 'T':
        o.tenant = optarg;
        break;
      case THREADS:
        o.threads = number("threads", optarg, 1, 4096);
        break;
      case LAYERS:
        o.gpu_layers = number("gpu-layers", optarg, 0, INT_MAX);
        break;
      case FLASH:
        if (strcmp(optarg, "on") != 0 && strcmp(optarg, "off") != 0)
          exit(complain("--flash-attention", "on or off"));
        o.flash_attention = strcmp(optarg, "on") == 0;
        break;
      case DEADLINE:
        o.deadline_ms = number("deadline-ms", optarg, 0, 3600000);
        break;
      case 'j':
        o.json = true;
        break;
      case 'v':
        o.verbose = true;
        break;
      case 'h':
        fputs(usage, stdout);
        exit(0);
      default:
        exit(2);
    }
  }
  if (o.model == NULL) exit(complain("--model", "is missing: a GGUF file (--help)"));
  if (optind == argc) exit(complain("PROMPT_FILE", "is missing (--help)"));
  return o;
}

/* ---- Prompts ---- */

static bool append(list* to, llama_token token) {
  if (to->count == to->capacity) {
    const size_t capacity = to->capacity == 0 ? 1024 : 2 * to->capacity;
    llama_token* tokens = realloc(to->tokens, capacity * sizeof *tokens);
    if (tokens == NULL) return false;
    to->tokens = tokens;
    to->capacity = capacity;
  }
  to->tokens[to->count++] = token;
  return true;
}

/* The file's bytes with a zero behind them, to be freed; NULL: errno says why not. */
static char* contents(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return NULL;
  char* text = NULL;
  size_t capacity = 0;
  *bytes = 0;
  for (size_t read = 1; read > 0; *bytes += read) {
    if (capacity - *bytes < 2) {
      char* longer = realloc(text, capacity = capacity == 0 ? 1 << 16 : 2 * capacity);
      if (longer == NULL) break;
      text = longer;
    }
    read = fread(text + *bytes, 1, capacity - *bytes - 1, file);
    if (read == 0 && !ferror(file)) {
      fclose(file);
      text[*bytes] = '\0';
      return text;
    }
    if (read == 0) break;
  }
  free(text);
  fclose(file);
  return NULL;
}

static bool read_ids(const run* r, const char* path, const char* text, list* prompt) {
  const int32_t known = llama_vocab_n_tokens(r->vocab);
  for (const char* at = text;;) {
    at += strspn(at, " \t\r\n");
    if (*at == '\0') return true;
    char* end = NULL;
    const long id = strtol(at, &end, 10);
    if (end == at || id < 0 || id >= known) {
      fprintf(stderr, "kvtier-llama: %s: byte %td: token ids are numbers from 0 to %d\n", path,
              at - text, known - 1);
      return false;
    }
    if (!append(prompt, (llama_token)id)) return false;
    at = end;
  }
}

static bool tokenize(const run* r, const char* path, const char* text, size_t bytes, list* prompt) {
  if (llama_vocab_type(r->vocab) == LLAMA_VOCAB_TYPE_NONE) {
    complain(path, "the model has no vocabulary: give token ids (--tokens)");
    return false;
  }
  if (bytes > INT32_MAX / 2) {
    complain(path, "is too long");
    return false;
  }
  prompt->capacity = bytes + 2;
  prompt->tokens = malloc(prompt->capacity * sizeof *prompt->tokens);
  if (prompt->tokens == NULL) return false;
  const int32_t count = llama_tokenize(r->vocab, text, (int32_t)bytes, prompt->tokens,
                                       (int32_t)prompt->capacity, true, true);
  if (count < 0) complain(path, "cannot be cut into tokens");
  prompt->count = count < 0 ? 0 : (size_t)count;
  return count >= 0;
}

static bool read_prompt(const run* r, const char* path, list* prompt) {
  size_t bytes = 0;
  char* text = contents(path, &bytes);
  if (text == NULL) {
    complain(path, strerror(errno));
    return false;
  }
  const bool read =
      r->o.ids ? read_ids(r, path, text, prompt) : tokenize(r, path, text, bytes, prompt);
  free(text);
  if (!read) return false;
  if (prompt->count == 0) {
    complain(path, "has no tokens");
    return false;
  }
  const size_t room = llama_n_ctx(r->context);
  if (prompt->count + (size_t)r->o.answer > room) {
    fprintf(stderr,
            "kvtier-llama: %s: %zu tokens and %ld of answer do not fit into a context of %zu: "
            "--context\n",
            path, prompt->count, r->o.answer, room);
    return false;
  }
  return true;
}

/* ---- Answers ---- */

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static bool decode(const run* r, llama_token* tokens, size_t count) {
  for (size_t done = 0; done < count;) {
    const size_t most = (size_t)r->o.batch;
    const size_t some = count - done < most ? count - done : most;
    /* Sequence 0; positions go on where it ends. */
    if (llama_decode(r->context, llama_batch_get_one(tokens + done, (int32_t)some)) != 0)
      return false;
    done += some;
  }
  return true;
}

static llama_token likeliest(const run* r) {
  const float* logits = llama_get_logits_ith(r->context, -1);
  llama_token best = 0;
  for (llama_token i = 1; i < llama_vocab_n_tokens(r->vocab); ++i)
    if (logits[i] > logits[best]) best = i;
  return best;
}

static bool ends(const run* r, llama_token token) {
  return llama_vocab_type(r->vocab) != LLAMA_VOCAB_TYPE_NONE && llama_vocab_is_eog(r->vocab, token);
}

static void print_answer(const run* r, const list* all, size_t prompt) {
  for (size_t i = prompt; i < all->count; ++i) {
    char piece[256];
    if (r->o.ids) {
      printf("%s%d", i == prompt ? "" : " ", all->tokens[i]);
    } else {
      const int32_t bytes =
          llama_token_to_piece(r->vocab, all->tokens[i], piece, sizeof piece, 0, false);
      if (bytes > 0) fwrite(piece, 1, (size_t)bytes, stdout);
    }
  }
  printf("\n");
}

static void report(const run* r, const char* path, const list* all, size_t prompt, size_t restored,
                   double first_token_ms, const kvl_stats* now) {
  if (!r->o.json) {
    print_answer(r, all, prompt);
    fprintf(stderr, "%s: %zu tokens, %zu from the cache, first token after %.1f ms\n", path, prompt,
            restored, first_token_ms);
    return;
  }
  printf("{\"prompt_tokens\": %zu, \"restored_tokens\": %zu, \"first_token_ms\": %.3f, ", prompt,
         restored, first_token_ms);
  printf("\"offered_blocks\": %llu, \"unsaved_blocks\": %llu, \"refused_blocks\": %llu, ",
         (unsigned long long)now->offered, (unsigned long long)now->unsaved,
         (unsigned long long)now->refused);
  printf("\"answer\": [");
  for (size_t i = prompt; i < all->count; ++i)
    printf("%s%d", i == prompt ? "" : ", ", all->tokens[i]);
  printf("]}\n");
}

static bool answer(run* r, const char* path) {
  list all = {0};
  bool good = read_prompt(r, path, &all);
  const size_t prompt = all.count;
  kvl_stats stats = {0};
  llama_memory_seq_rm(llama_get_memory(r->context), 0, -1, -1);
  const double start = milliseconds();
  const size_t restored = good && r->cache != NULL ? kvl_restore(r->cache, 0, all.tokens, prompt,
                                                                 MILLISECONDS(r->o.deadline_ms))
                                                   : 0;
  double first_token_ms = 0;
  for (long i = 0; good && i < r->o.answer; ++i) {
    const size_t done = i == 0 ? restored : all.count - 1;
    if (!decode(r, all.tokens + done, all.count - done)) {
      complain(path, "llama_decode failed (--verbose says why)");
      good = false;
      break;
    }
    const llama_token token = likeliest(r);
    if (i == 0) first_token_ms = milliseconds() - start;
    good = append(&all, token);
    if (ends(r, token)) break;
  }
  if (good && r->cache != NULL) {
    /* The last token of the answer has not been decoded. */
    if (kvl_save(r->cache, 0, all.tokens, all.count - 1, MILLISECONDS(60000)) != KVT_OK)
      complain(path, kvl_error());
    kvl_get_stats(r->cache, &stats);
  }
  if (good) report(r, path, &all, prompt, restored, first_token_ms, &stats);
  fflush(stdout);
  free(all.tokens);
  return good;
}

/* ---- The engine ---- */

static void say_nothing(enum ggml_log_level level, const char* text, void* user) {
  (void)user;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void say(void* user, kvt_log_level level, const char* line) {
  (void)user;
  (void)level;
  fprintf(stderr, "%s\n", line);
}

static bool open_cache(run* r, const struct llama_context_params* params) {
  char model[64];
  kvl_options cache = KVL_OPTIONS_INIT;
  cache.socket = r->o.socket;
  cache.model = model;
  cache.adapter = r->o.adapter;
  cache.tenant = r->o.tenant;
  cache.block_tokens = (uint32_t)r->o.block_tokens;
  cache.staging_bytes = (size_t)r->o.staging << 20;
  cache.log = r->o.verbose ? say : NULL;
  if (kvl_model_of_file(r->o.model, model, sizeof model) != KVT_OK ||
      kvl_open(r->context, params, &cache, &r->cache) != KVT_OK) {
    complain(r->o.model, kvl_error());
    return false;
  }
  if (kvl_wait_open(r->cache, MILLISECONDS(r->o.deadline_ms)) != KVT_OK)
    fprintf(stderr, "kvtier-llama: the cache is not used yet: %s\n", kvl_error());
  return true;
}

static bool open_engine(run* r) {
  llama_backend_init();
  if (!r->o.verbose) llama_log_set(say_nothing, NULL);
  struct llama_model_params how = llama_model_default_params();
  if (r->o.gpu_layers >= 0) how.n_gpu_layers = (int32_t)r->o.gpu_layers;
  r->model = llama_model_load_from_file(r->o.model, how);
  if (r->model == NULL) {
    complain(r->o.model, "is not a model that llama.cpp loads (--verbose says why)");
    return false;
  }
  r->vocab = llama_model_get_vocab(r->model);
  const long trained = llama_model_n_ctx_train(r->model);
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = (uint32_t)(r->o.context > 0 ? r->o.context : trained < 8192 ? trained : 8192);
  params.n_batch = params.n_ubatch = (uint32_t)r->o.batch;
  params.n_seq_max = 2;
  params.kv_unified = true;
  params.flash_attn_type =
      r->o.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  if (r->o.threads > 0) params.n_threads = params.n_threads_batch = (int32_t)r->o.threads;
  r->context = llama_init_from_model(r->model, params);
  if (r->context == NULL) {
    complain(r->o.model, "no context of this size (--context; --verbose says why)");
    return false;
  }
  return r->o.no_cache || open_cache(r, &params);
}

int main(int argc, char** argv) {
  run r = {.o = parse(argc, argv)};
  signal(SIGPIPE, SIG_IGN);
  bool good = open_engine(&r);
  for (int i = optind; good && i < argc; ++i) {
    good = answer(&r, argv[i]);
    /* So that the next prompt finds what this one has computed. */
    if (good && r.cache != NULL && kvl_flush(r.cache, MILLISECONDS(60000)) != KVT_OK)
      fprintf(stderr, "kvtier-llama: not all is safe in the cache: %s\n", kvl_error());
  }
  kvl_close(r.cache);
  llama_free(r.context);
  llama_model_free(r.model);
  llama_backend_free();
  return good ? 0 : 1;
}
