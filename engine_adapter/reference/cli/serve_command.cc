#include <map>
#include <optional>

#include "daemon/config/host_memory.h"
#include "engine_adapter/reference/cli/command.h"
#include "engine_adapter/reference/scheduler/scheduler.h"
#include "engine_adapter/reference/server/http_server.h"
#include "engine_adapter/reference/server/limits.h"
#include "engine_adapter/reference/template/chat_template.h"
#include "kvtier/client.h"

namespace kvtier::engine::cli {
namespace {

struct ServeOptions {
  ModelOptions model;
  std::string served_name;
  std::string device = "cpu";
  std::string socket = "/run/kvtier/kvtierd.sock";
  std::string format = "fp8_e4m3";
  std::string api_key_file;
  std::string chat_template;
  std::uint32_t chunk_tokens = 0;
  std::uint32_t pool_tokens = 0;
  bool batch_invariant = false;
  double memory_utilization = 0;
  std::uint32_t deadline_ms = 1000;
  std::uint32_t handoff_deadline_ms = 30'000;
  server::Role role = server::Role::both;
  bool no_cache = false;
  SpeculateOptions speculate;
  server::HttpOptions http;
  SchedulerOptions scheduler;
};

const std::map<std::string, server::Role> kRoles{{"both", server::Role::both},
                                                 {"prefill", server::Role::prefill},
                                                 {"decode", server::Role::decode}};
const std::map<std::string, LoadPolicy> kPolicies{{"auto", LoadPolicy::automatic},
                                                  {"load", LoadPolicy::always_load},
                                                  {"compute", LoadPolicy::always_compute},
                                                  {"both", LoadPolicy::always_both}};

void add_options(CLI::App& command, ServeOptions& o) {
  command
      .add_option("--model", o.model.directory,
                  "Directory with config.json, a tokenizer and weights")
      ->required();
  command.add_option("--served-name", o.served_name,
                     "What clients call the model; the directory's name if left out");
  command
      .add_option("--chat-template", o.chat_template,
                  "A Jinja file to render chats with instead of the model's own template")
      ->check(CLI::ExistingFile);
  add_context_option(command, o.model.context_max);
  add_window_options(command, o.model);
  add_device_option(command, o.device);
  command.add_option("--host", o.http.address, "The IP address to listen on")
      ->capture_default_str();
  command.add_option("--port", o.http.port, "The port to listen on; 0: any that is free")
      ->capture_default_str();
  command.add_option("--api-key-file", o.api_key_file,
                     "A file with the key that clients must send; without it anybody may ask");
  command
      .add_option("--connections-max", o.http.connections_max,
                  "Requests answered at a time, each on a connection; more get 503")
      ->check(CLI::Range(1U, server::kConnectionsMax))
      ->capture_default_str();
  command
      .add_option("--drain-seconds", o.http.drain_s_max,
                  "After SIGINT or SIGTERM, the longest wait for the answers under way; another "
                  "signal cuts them off")
      ->check(CLI::Range(0U, 3600U))
      ->capture_default_str();
  command
      .add_option("--waiting-max", o.scheduler.waiting_max,
                  "Requests that wait for pages; more are refused with status 429")
      ->check(CLI::Range(1U, 1U << 16))
      ->capture_default_str();
  command
      .add_option("--running-max", o.scheduler.running_max,
                  "Answers under way at once: a request of n answers is n, one of n beams 2 n")
      ->check(CLI::Range(1U, 1U << 12))
      ->capture_default_str();
  command.add_option("--socket", o.socket, "The daemon's socket")->capture_default_str();
  command.add_flag("--no-cache", o.no_cache, "Talk to no daemon");
  command
      .add_option("--role", o.role,
                  "both; prefill: computes prompts for other engines, which find them in the "
                  "cache; decode: answers, and takes prompts that others compute")
      ->transform(CLI::CheckedTransformer(kRoles))
      ->default_str("both");
  command
      .add_option("--handoff-deadline-ms", o.handoff_deadline_ms,
                  "The longest that a request whose prompt another engine computes waits for its "
                  "next block; then it computes the rest")
      ->capture_default_str();
  command
      .add_option("--load-policy", o.scheduler.load_policy,
                  "What is done about a prompt's cached part: auto (whatever is expected to be "
                  "sooner), load, compute, or both at once")
      ->transform(CLI::CheckedTransformer(kPolicies))
      ->default_str("auto");
  add_storage_format_option(command, o.format);
  command
      .add_option("--chunk-tokens", o.chunk_tokens,
                  "Rows of a step; 0: 512 on the CPU, 8192 on a GPU")
      ->check(CLI::Range(0U, 1U << 16))
      ->capture_default_str();
  command
      .add_option("--chunk-tokens-beside-answers", o.scheduler.tokens_beside_answers,
                  "Rows of a step of prompts and answers, each of which waits for them all; 0: as "
                  "of any step")
      ->check(CLI::Range(0U, 1U << 16))
      ->capture_default_str();
  command.add_flag("--batch-invariant", o.batch_invariant,
                   "On a GPU: an answer does not depend on what else is in its steps, which costs "
                   "some of the speed; on the CPU it never does");
  o.speculate.add_to(command);
  auto* pool_tokens = add_pool_tokens_option(command, o.pool_tokens);
  command
      .add_option("--memory-utilization", o.memory_utilization,
                  "In place of --pool-tokens: the part of the GPU's memory, or on the CPU of the "
                  "host's, that the engine may take; pages get what weights and activations leave")
      ->check(CLI::Range(0.01, 1.0))
      ->excludes(pool_tokens);
  command
      .add_option("--deadline-ms", o.deadline_ms,
                  "The longest that a request waits for the cache while nothing comes from it")
      ->capture_default_str();
}

// The file's first line.
Result<std::string> read_key(const std::string& file) {
  if (file.empty()) return std::string{};
  auto text = read_file(file);
  if (!text) return text.error();
  const std::string key = text->substr(0, text->find_first_of("\r\n"));
  if (key.empty()) return make_error(Errc::invalid, file + ": its first line, the key, is empty");
  return key;
}

Result<std::shared_ptr<Client>> connect(const ServeOptions& o) {
  if (o.no_cache) return std::shared_ptr<Client>{};
  auto client = Client::start({.cuda_device = parse_device(o.device).value().cuda,
                               .socket = o.socket,
                               .name = "kvtier-engine"});
  if (!client) return client;
  const auto deadline = Clock::now() + std::chrono::milliseconds(o.deadline_ms);
  if (const auto connected = (*client)->wait_connected(deadline); !connected) {
    std::fprintf(stderr, "kvtier-engine: going on without a cache until it is there: %s\n",
                 shown(connected.error().message).c_str());
  }
  return client;
}

std::string name_of(const ServeOptions& o, const LoadedModel& loaded) {
  return o.served_name.empty() ? loaded.revision.substr(0, loaded.revision.rfind('@'))
                               : o.served_name;
}

void warn_if_open(const ServeOptions& o, const std::string& key) {
  const bool loopback = o.http.address.starts_with("127.") || o.http.address == "::1";
  if (loopback || !key.empty()) return;
  std::fprintf(stderr,
               "kvtier-engine: anybody who reaches %s may ask; give --api-key-file or a loopback "
               "address\n",
               o.http.address.c_str());
}

struct Chats {
  std::optional<ChatTemplate> chat_template;
  std::string why_not;  // for clients
};

// A template that cannot be used is said and left out, so that completions work; one that was asked
// for must be right.
Result<Chats> load_chats(const ServeOptions& o) {
  auto loaded = ChatTemplate::load(o.model.directory, o.chat_template);
  if (loaded && !*loaded) return Chats{};
  auto failures = loaded ? (*loaded)->try_out() : Result<std::vector<std::string>>(loaded.error());
  if (!failures && !o.chat_template.empty()) return failures.error();
  if (!failures) {
    const std::string& why = failures.error().message;
    std::fprintf(stderr,
                 "kvtier-engine: %s: chats are refused, for the chat template cannot be used: %s\n"
                 "kvtier-engine: give one that can with --chat-template FILE\n",
                 o.model.directory.c_str(), why.c_str());
    return Chats{{}, "the model's chat template cannot be used: " + why};
  }
  for (const std::string& failure : *failures) {
    std::fprintf(stderr, "kvtier-engine: the chat template cannot render some chats: %s\n",
                 failure.c_str());
  }
  return Chats{std::move(*loaded), {}};
}

int serve(const ServeOptions& o) {
  if (o.role != server::Role::both && o.no_cache) {
    std::fprintf(stderr,
                 "kvtier-engine: --role prefill and decode hand prompts over in the cache; leave "
                 "--no-cache out\n");
    return kExitUsage;
  }
  if (const auto valid = o.speculate.validate(); !valid) return misused(valid.error());
  const auto key = read_key(o.api_key_file);
  if (!key) return fail(key.error());
  const auto loaded = o.model.load();
  if (!loaded) return fail(loaded.error());
  const auto chats = load_chats(o);
  if (!chats) return fail(chats.error());
  const auto host = daemon::read_host_memory();
  if (!host) return fail(host.error());
  const InstanceOptions made{.device = parse_device(o.device).value(),
                             .format = parse_storage_format(o.format).value(),
                             .pool_tokens = o.pool_tokens,
                             .chunk_tokens = o.chunk_tokens,
                             .batch_invariant = o.batch_invariant,
                             .memory_utilization = o.memory_utilization,
                             .host_bytes = host->total_bytes};
  // The small model first: what it takes is not left for pages.
  const auto draft = DraftModel::load(o.speculate, **loaded, made);
  if (!draft) return fail(draft.error());
  auto instance = Instance::make(**loaded, made);
  if (!instance) return fail(instance.error());
  if (parse_device(o.device).value().cuda) (*loaded)->let_go_of_weights();
  SchedulerOptions scheduling = o.scheduler;
  scheduling.speculation = speculation_of(o.speculate, draft->get());
  if (const auto valid = scheduling.validate(); !valid) return fail(valid.error());
  const auto client = connect(o);
  if (!client) return fail(client.error());

  CacheSpaces spaces(instance->ns, *client);
  const std::string title = name_of(o, **loaded);
  server::ServerMetrics metrics(title);
  scheduling.tell = [](const std::string& line) {
    std::fprintf(stderr, "kvtier-engine: %s\n", line.c_str());
  };
  // The server's io_context takes what the scheduler's thread tells it until that has ended.
  std::unique_ptr<server::HttpServer> http;
  {
    Scheduler scheduler(*instance->model, *instance->pool, spaces, scheduling);
    const std::uint32_t positions = (*loaded)->config.positions_max;
    server::Service service(*(*loaded)->tokenizer,
                            chats->chat_template ? &*chats->chat_template : nullptr, scheduler,
                            spaces, metrics,
                            {.role = o.role,
                             .model_name = title,
                             .api_key = *key,
                             .no_chat = chats->why_not,
                             .positions_max = positions,
                             .pool_tokens = (*loaded)->config.widest_window() != 0
                                                ? positions
                                                : instance->pool->pages() * kBlockTokens,
                             .cache_deadline = std::chrono::milliseconds(o.deadline_ms),
                             .handoff_deadline = std::chrono::milliseconds(o.handoff_deadline_ms)});
    auto listening = server::HttpServer::listen(o.http, service, metrics);
    if (!listening) return fail(listening.error());
    http = std::move(*listening);
    warn_if_open(o, *key);
    std::printf("kvtier-engine: serving %s on http://%s:%u\n", shown(title).c_str(),
                o.http.address.c_str(), http->port());
    std::fflush(stdout);
    http->run();
  }
  return kExitFine;
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_code) {
  add_command(app, exit_code, "serve", "Serve the OpenAI API over HTTP",
              "Run kvtier-engine --help for worked examples.", add_options, serve);
}

}  // namespace kvtier::engine::cli
