#include <chrono>
#include <map>
#include <sstream>

#include "engine_adapter/reference/cli/command.h"
#include "engine_adapter/reference/cli/run_report.h"
#include "engine_adapter/reference/scheduler/generator.h"
#include "kvtier/client.h"

namespace kvtier::engine::cli {
namespace {

constexpr std::chrono::seconds kFlushDeadline{60};

struct GenerateOptions {
  ModelOptions model;
  std::string device = "cpu";
  std::string socket = "/run/kvtier/kvtierd.sock";
  std::string prompt;
  std::string prompt_file;
  std::string prompt_ids;
  std::uint32_t prompt_length = 0;
  std::uint64_t prompt_seed = 1;
  std::string format = "fp8_e4m3";
  std::uint32_t tokens_max = 0;
  std::uint32_t chunk_tokens = 0;
  std::uint32_t pool_tokens = 0;  // 0: as many as the model takes
  std::uint32_t deadline_ms = 1000;
  std::uint32_t repeat = 1;
  LoadPolicy load_policy = LoadPolicy::always_load;
  bool no_cache = false;
  bool own_pages = false;
  SpeculateOptions speculate;
  bool add_bos = false;
  bool json = false;
  bool flush = false;
  SamplerOptions sampling;
};

void add_options(CLI::App& command, GenerateOptions& o) {
  o.model.add_to(command);
  add_device_option(command, o.device);
  command.add_option("--socket", o.socket, "The daemon's socket")->capture_default_str();
  command.add_flag("--no-cache", o.no_cache, "Compute everything; talk to no daemon");
  const std::map<std::string, LoadPolicy> policies{{"load", LoadPolicy::always_load},
                                                   {"compute", LoadPolicy::always_compute},
                                                   {"both", LoadPolicy::always_both},
                                                   {"auto", LoadPolicy::automatic}};
  command
      .add_option("--load-policy", o.load_policy,
                  "What to do about cached blocks: load, compute, both at once, or auto: what is "
                  "fastest as measured in this process")
      ->transform(CLI::CheckedTransformer(policies))
      ->default_str("load");
  auto* prompt = command.add_option_group("prompt")->require_option(1);
  prompt->add_option("--prompt", o.prompt, "The prompt");
  prompt->add_option("--prompt-file", o.prompt_file, "A file that is the prompt, byte for byte");
  prompt->add_option("--prompt-ids", o.prompt_ids, "A file of token ids between white space");
  prompt->add_option("--prompt-length", o.prompt_length, "So many tokens drawn from --prompt-seed")
      ->check(CLI::Range(1U, 1U << 24));
  command.add_option("--prompt-seed", o.prompt_seed, "Of --prompt-length")->capture_default_str();
  command.add_flag("--add-bos", o.add_bos, "Put the tokenizer's template (or bos token) in front");
  command.add_option("--max-tokens", o.tokens_max, "Tokens to answer with, at most")
      ->required()
      ->check(CLI::Range(1U, 1U << 24));
  command.add_option("--repeat", o.repeat, "Answer the prompt this many times in one process")
      ->check(CLI::Range(1U, 1U << 20))
      ->capture_default_str();
  command.add_flag(
      "--own-pages", o.own_pages,
      "Each run of --repeat finds in the engine's own pages what those before it left");
  command.add_flag("--flush", o.flush, "After the last run wait until all blocks are kept safely");
  command.add_flag("--json", o.json, "Print {\"runs\": [...]} and nothing else");
  add_storage_format_option(command, o.format);
  command.add_option("--temperature", o.sampling.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--top-k", o.sampling.top_k, "Choose among this many; 0: all")
      ->capture_default_str();
  command.add_option("--top-p", o.sampling.top_p, "Choose among this much probability")
      ->check(CLI::Range(1e-9, 1.0))
      ->capture_default_str();
  command.add_option("--seed", o.sampling.seed, "Of the choices")->capture_default_str();
  command
      .add_option("--chunk-tokens", o.chunk_tokens,
                  "Prompt tokens computed at once; 0: 512 on the CPU, 8192 on a GPU")
      ->check(CLI::Range(0U, 1U << 16))
      ->capture_default_str();
  o.speculate.add_to(command);
  add_pool_tokens_option(command, o.pool_tokens);
  command
      .add_option("--deadline-ms", o.deadline_ms,
                  "The longest wait for the daemon, at the start and in each request")
      ->capture_default_str();
}

Result<std::vector<Token>> read_ids(const std::string& file) {
  const auto text = read_file(file);
  if (!text) return text.error();
  std::istringstream words(*text);
  std::vector<Token> tokens;
  for (Token token = 0; words >> token;) tokens.push_back(token);
  if (!words.eof()) return make_error(Errc::malformed, file + ": not token ids");
  return tokens;
}

Result<std::vector<Token>> read_prompt(const GenerateOptions& o, const LoadedModel& loaded) {
  if (o.prompt_length != 0) {
    SplitMix64 random(o.prompt_seed);
    std::vector<Token> tokens(o.prompt_length);
    for (Token& token : tokens)
      token = static_cast<Token>(random.next() % loaded.config.vocab_size);
    return tokens;
  }
  if (!o.prompt_ids.empty()) return read_ids(o.prompt_ids);
  if (!loaded.tokenizer) {
    return make_error(Errc::invalid,
                      "a model with random weights has no tokenizer: give --prompt-length or "
                      "--prompt-ids");
  }
  auto text = o.prompt_file.empty() ? Result<std::string>(o.prompt) : read_file(o.prompt_file);
  if (!text) return text.error();
  auto tokens = loaded.tokenizer->encode(*text);
  if (!tokens || !o.add_bos) return tokens;
  std::span<const Token> front = loaded.tokenizer->template_prefix();
  if (front.empty()) front = loaded.config.bos;
  tokens->insert(tokens->begin(), front.begin(), front.end());
  return tokens;
}

struct Connection {
  std::shared_ptr<Client> client;
  std::shared_ptr<Cache> cache;
};

// A daemon that is not there is no error: the client goes on trying, the engine goes on without.
Result<Connection> connect(const GenerateOptions& o, const Namespace& ns) {
  if (o.no_cache) return Connection{};
  auto client = Client::start({.cuda_device = parse_device(o.device).value().cuda,
                               .socket = o.socket,
                               .name = "kvtier-engine"});
  if (!client) return client.error();
  const auto deadline = Clock::now() + std::chrono::milliseconds(o.deadline_ms);
  if (const auto connected = (*client)->wait_connected(deadline); !connected) {
    std::fprintf(stderr, "kvtier-engine: going on without a cache: %s\n",
                 connected.error().message.c_str());
  }
  auto cache = (*client)->open(ns);
  if (!cache) return cache.error();
  return Connection{std::move(*client), std::move(*cache)};
}

Result<RunReport> run_once(const GenerateOptions& o, const GenerateRequest& request,
                           const LoadedModel& loaded, Generator& generator, const Client* client) {
  RunReport report;
  report.prompt_tokens = request.prompt.size();
  std::optional<TextStream> text;
  if (loaded.tokenizer) text.emplace(*loaded.tokenizer);
  const auto say = [&](const std::string& piece) {
    report.answer += piece;
    if (o.json || piece.empty()) return;
    std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  };
  auto result = generator.generate(
      request, [&](Token token) { say(text ? text->push(token) : std::to_string(token) + " "); });
  if (!result) return result.error();
  if (text) say(text->finish());
  report.result = std::move(*result);
  report.connected = client != nullptr && client->connected();
  return report;
}

int generate(const GenerateOptions& o) {
  if (const auto valid = o.speculate.validate(); !valid) return misused(valid.error());
  const auto loaded = o.model.load();
  if (!loaded) return fail(loaded.error());
  const auto prompt = read_prompt(o, **loaded);
  if (!prompt) return fail(prompt.error());
  const InstanceOptions made{.device = parse_device(o.device).value(),
                             .format = parse_storage_format(o.format).value(),
                             .pool_tokens = o.pool_tokens,
                             .chunk_tokens = o.chunk_tokens};
  auto instance = Instance::make(**loaded, made);
  if (!instance) return fail(instance.error());
  const auto draft = DraftModel::load(o.speculate, **loaded, made);
  if (!draft) return fail(draft.error());
  if (parse_device(o.device).value().cuda) (*loaded)->let_go_of_weights();
  const auto connection = connect(o, instance->ns);
  if (!connection) return fail(connection.error());

  Generator generator(*instance->model, *instance->pool, id_of(instance->ns),
                      connection->cache.get(), o.load_policy,
                      speculation_of(o.speculate, draft->get()), o.own_pages);
  const GenerateRequest request{.prompt = *prompt,
                                .tokens_max = o.tokens_max,
                                .sampling = o.sampling,
                                .cache_deadline = std::chrono::milliseconds(o.deadline_ms)};
  Json runs = Json::array();
  for (std::uint32_t run = 0; run < o.repeat; ++run) {
    const auto report = run_once(o, request, **loaded, generator, connection->client.get());
    if (!report) return fail(report.error());
    if (o.json) {
      runs.push_back(to_json(*report));
    } else {
      std::printf("\n");
      std::fprintf(stderr, "kvtier-engine: %s\n", summarise(*report).c_str());
    }
  }
  if (o.json) std::printf("%s\n", Json{{"runs", runs}}.dump(2).c_str());
  if (o.flush && connection->client) {
    const auto deadline = Clock::now() + kFlushDeadline;
    generator.settle(deadline);
    const auto flushed = connection->client->flush(deadline);
    if (!flushed) return fail(flushed.error());
  }
  return kExitFine;
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  add_command(app, exit_code, "generate", "Answer a prompt",
              "Run kvtier-engine --help for worked examples.", add_options, generate);
}

}  // namespace kvtier::engine::cli
