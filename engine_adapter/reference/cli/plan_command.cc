#include "core/base/sizes.h"
#include "core/base/units.h"
#include "core/terminal/table.h"
#include "core/terminal/units.h"
#include "ctl/commands.h"
#include "daemon/config/config.h"
#include "daemon/config/host_memory.h"
#include "engine_adapter/reference/cli/command.h"
#include "engine_adapter/reference/cli/plan_trace.h"
#include "engine_adapter/reference/model/weights/engine_memory.h"
#include "engine_adapter/reference/model/weights/random_weights.h"

namespace kvtier::engine::cli {
namespace {

constexpr const char* kPlanExamples = R"(
Without tiers only sizes are told. --config and --socket tell the tiers of a daemon; sizes given
beside them take the place of theirs, so that a change can be weighed before it is made.

Examples:
  What a context of 32,768 tokens takes, and how many of them fit:
    kvtier-engine plan --random-weights llama-3.1-8b --context 32768 \
        --device-tier 24GiB --host-tier 256GiB --disk-tier 4TiB
  A model in the running daemon's tiers, in BF16 alone, as JSON:
    kvtier-engine plan --model DIR --socket /run/kvtier/kvtierd.sock --storage-format bf16 --json
  The same with twice the host memory, before kvtierd.toml is changed:
    kvtier-engine plan --model DIR --config /etc/kvtier/kvtierd.toml --host-tier 512GiB
  Whether 70 billion weights fit on two GPUs of 80 GB, with contexts of 32,768 tokens, and how many:
    kvtier-engine plan --random-weights llama-3.1-70b --context 32768 --gpus 2 --gpu-memory 80GB
  What 1,000 users take whose requests of 3,000 tokens begin with the same 1,000:
    kvtier-engine plan --random-weights llama-3.1-8b --context 3000 --gpu-memory 80GB \
        --users 1000 --shared-tokens 1000
  What more memory or disk would buy for requests such as those of yesterday:
    kvtier-engine plan --model DIR --trace requests.jsonl --host-tier 128GiB --disk-tier 2TiB

A line of a trace is a request: {"timestamp": milliseconds, "input_length": tokens, "output_length": tokens,
"hash_ids": [numbers of the prompt's consecutive blocks; equal ones mean that all before them is equal too]}.

Exit status: 0 fine, 1 a file, the model or the daemon failed, 2 wrong usage.
)";

struct PlanOptions {
  std::string directory;
  std::string shape;
  std::uint32_t context = 0;  // 0: max_position_embeddings
  std::vector<std::string> formats;
  std::string config;
  std::string socket;
  std::array<std::string, kTiers> sizes;
  std::string gpu_memory;
  EngineHost host;
  SharedUsers users;
  std::string trace;
  std::uint32_t trace_block_tokens = 0;  // 0: as its lengths say
  bool json = false;
};

struct Cache {
  std::vector<TierPart> parts;
  std::uint64_t blocks_max = 0;  // that the index holds; 0: not known
};

std::string check_size(const std::string& text) {
  const auto bytes = parse_size(text);
  return bytes ? std::string{} : bytes.error().message;
}

void add_options(CLI::App& command, PlanOptions& o) {
  auto* from = command.add_option_group("model")->require_option(1);
  from->add_option("--model", o.directory,
                   "Directory with config.json; nothing else of it is read");
  from->add_option(
      "--random-weights", o.shape,
      "A shape: llama-3.1-8b, llama-3.1-70b, llama-3.2-1b, qwen2.5-7b, qwen3-8b, tiny, tiny-mla, "
      "or a config.json");
  command
      .add_option("--context", o.context, "Tokens of one request; 0: as many as the model takes")
      ->capture_default_str();
  command
      .add_option(
          "--storage-format", o.formats,
          std::string(kStorageFormats) + "; may be given again. fp8_e4m3 and bf16 if left out")
      ->check(check_storage_format);
  auto* config = command.add_option("--config", o.config, "The tiers of this kvtierd.toml");
  command.add_option("--socket", o.socket, "The tiers of the daemon that listens here")
      ->excludes(config);
  for (const Tier tier : kAllTiers) {
    command
        .add_option(std::string("--") + name(tier) + "-tier", o.sizes[index_of(tier)],
                    std::string("Size of the ") + name(tier) + " tier, such as 64GiB; 0: none")
        ->check(check_size);
  }
  auto* gpu_memory =
      command
          .add_option("--gpu-memory", o.gpu_memory,
                      "Memory of each GPU that the engine runs on, such as 80GB: what "
                      "weights and activations take of it, and how much KV fits")
          ->check(check_size);
  command.add_option("--gpus", o.host.gpus, "GPUs that share the model")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str()
      ->needs(gpu_memory);
  command
      .add_option("--memory-utilization", o.host.utilization,
                  "The part of each GPU's memory that the engine may take")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str()
      ->needs(gpu_memory);
  command.add_option("--chunk-tokens", o.host.step_tokens, "Rows of a step")
      ->check(CLI::Range(1U, 1U << 20))
      ->capture_default_str()
      ->needs(gpu_memory);
  command.add_option("--weight-bits", o.host.weight_bits, "Of each weight as the GPUs hold it")
      ->check(CLI::IsMember({4, 8, 16, 32}))
      ->capture_default_str()
      ->needs(gpu_memory);
  auto* users =
      command.add_option("--users", o.users.users, "That have a request of --context each")
          ->check(CLI::Range(1U, 1U << 30))
          ->needs(gpu_memory);
  command
      .add_option("--shared-tokens", o.users.shared_tokens,
                  "Tokens that the users' requests begin with alike")
      ->needs(users);
  auto* trace = command.add_option("--trace", o.trace,
                                   "Requests, as JSON lines: how many of their blocks would hit");
  command.add_option("--trace-block-tokens", o.trace_block_tokens, "Tokens of the trace's blocks")
      ->check(CLI::Range(1U, 1024U))
      ->default_str("as its lengths say")
      ->needs(trace);
  command.add_flag("--json", o.json, "JSON with raw numbers");
}

Result<ModelConfig> read_model(const PlanOptions& o) {
  if (!o.directory.empty()) {
    return load_model_config(std::filesystem::path(o.directory) / "config.json");
  }
  auto shape = random_shape(o.shape);
  if (!shape) return shape.error();
  return std::move(shape->config);
}

std::uint64_t container_bytes(const daemon::Config& config, Tier tier) {
  if (tier == Tier::disk) return config.disk.segment_bytes;
  return tier == Tier::host ? config.host.extent_bytes : config.device.extent_bytes;
}

// What memory a tier is made of; sizes given by hand are of GPUs.
std::uint64_t unit_bytes(Tier tier, bool gpu_memory) {
  return tier == Tier::device && gpu_memory ? 2_MiB : kRecordAlignment;
}

Result<Cache> tiers_of_config(const std::string& file) {
  auto config = daemon::load_config(file);
  if (!config) return config.error();
  if (auto settled = daemon::settle_host_capacity(*config, 0); !settled) return settled.error();
  const bool gpus = config->device.backend == daemon::DeviceBackend::cuda;
  const auto part = [&](Tier tier, std::uint64_t bytes, std::size_t parts) {
    return TierPart{tier, bytes, container_bytes(*config, tier), unit_bytes(tier, gpus),
                    static_cast<std::uint32_t>(parts)};
  };
  return Cache{{part(Tier::device, config->device.capacity_bytes, config->device.gpus.size()),
                part(Tier::host, config->host.capacity_bytes, 1),
                part(Tier::disk, config->disk.capacity_bytes, config->disk.directories.size())},
               config->index_blocks_max};
}

// A daemon does not tell how large its extents and segments are: taken to be as usual.
Result<Cache> tiers_of_daemon(const std::string& socket) {
  const auto status = ctl::fetch_status({.socket = socket});
  if (!status) {
    return make_error(status.error().code, status.error().message + " (socket " + socket + ")");
  }
  const daemon::Config usual;
  Cache cache{{}, (*status)["blocks_max"]};
  const auto add = [&](Tier tier, const ctl::Json& part) {
    const bool gpu = part.value("name", "") != "memory";
    cache.parts.push_back(
        {tier, part["cap_bytes"], container_bytes(usual, tier), unit_bytes(tier, gpu)});
  };
  for (const ctl::Json& gpu : (*status)["gpus"]) add(Tier::device, gpu);
  for (const ctl::Json& tier : (*status)["tiers"]) {
    if (tier["tier"] == name(Tier::host)) add(Tier::host, tier);
  }
  for (const ctl::Json& disk : (*status)["disks"]) add(Tier::disk, disk);
  return cache;
}

Result<Cache> find_tiers(const PlanOptions& o) {
  Result<Cache> cache = Cache{};
  if (!o.config.empty()) cache = tiers_of_config(o.config);
  if (!o.socket.empty()) cache = tiers_of_daemon(o.socket);
  if (!cache) return cache;
  for (const Tier tier : kAllTiers) {
    const std::string& size = o.sizes[index_of(tier)];
    if (size.empty()) continue;
    std::erase_if(cache->parts, [tier](const TierPart& part) { return part.tier == tier; });
    const std::uint64_t bytes = parse_size(size).value();
    cache->parts.push_back(
        {tier, bytes, container_bytes(daemon::Config{}, tier), unit_bytes(tier, true)});
  }
  return cache;
}

std::optional<EngineMemory> memory_of(const PlanOptions& o, const CapacityPlan& plan,
                                      const FormatPlan& format, const ModelConfig& config) {
  if (o.host.gpu_bytes == 0) return std::nullopt;
  return plan_engine_memory(config, format, plan.context_tokens, o.host, o.users);
}

ctl::Json to_json(const EngineMemory& memory, const PlanOptions& o) {
  ctl::Json json{{"gpus", o.host.gpus},
                 {"gpu_bytes", o.host.gpu_bytes},
                 {"parameters", memory.parameters},
                 {"weight_bytes", memory.weight_bytes},
                 {"activation_bytes", memory.activation_bytes},
                 {"kv_bytes", memory.kv_bytes},
                 {"missing_bytes", memory.missing_bytes},
                 {"token_bytes", memory.token_bytes},
                 {"mha_token_bytes", memory.mha_token_bytes},
                 {"tokens", memory.tokens},
                 {"requests", memory.requests}};
  if (o.users.users != 0) {
    json["users"] = {{"users", o.users.users},
                     {"shared_tokens", o.users.shared_tokens},
                     {"tokens", memory.users_tokens},
                     {"tokens_apart", memory.users_tokens_apart}};
  }
  return json;
}

std::string engine_table(const PlanOptions& o, const CapacityPlan& plan,
                         const ModelConfig& config) {
  ctl::Table table({{"FORMAT"},
                    {"A TOKEN", true},
                    {"AS MHA", true},
                    {"LEFT FOR KV", true},
                    {"TOKENS", true},
                    {"REQUESTS", true}});
  std::string users;
  EngineMemory any;
  for (const FormatPlan& format : plan.formats) {
    const EngineMemory memory = any = *memory_of(o, plan, format, config);
    table.add({name(format.format), ctl::human_bytes(memory.token_bytes),
               ctl::human_bytes(memory.mha_token_bytes), ctl::human_bytes(memory.kv_bytes),
               std::to_string(memory.tokens), std::to_string(memory.requests)});
    if (o.users.users == 0) continue;
    users += std::string(name(format.format)) + ": " + std::to_string(o.users.users) +
             " users take " + std::to_string(memory.users_tokens) + " tokens, " +
             std::to_string(memory.users_tokens_apart) + " if nothing were shared; " +
             (memory.users_tokens <= memory.tokens
                  ? "they fit.\n"
                  : std::to_string(memory.tokens) +
                        " fit at once: the others wait, or their blocks lie in the tiers.\n");
  }
  std::string text = std::to_string(o.host.gpus) + (o.host.gpus == 1 ? " GPU" : " GPUs") + " of " +
                     ctl::human_bytes(o.host.gpu_bytes) + "; on each " +
                     ctl::human_bytes(any.weight_bytes) + " of weights (" +
                     std::to_string(any.parameters) + " of them in all) and " +
                     ctl::human_bytes(any.activation_bytes) + " of activations.\n";
  if (any.missing_bytes != 0) {
    return text + "The engine does not fit: " + ctl::human_bytes(any.missing_bytes) +
           " are missing on each. Give more GPUs, or weights of fewer bits.\n";
  }
  return text + "\n" + table.text() + (users.empty() ? "" : "\n" + users);
}

ctl::Json to_json(const PlanOptions& o, const CapacityPlan& plan, const ModelConfig& config,
                  const Cache& cache) {
  ctl::Json json{{"attention", plan.attention},
                 {"layers", config.layers},
                 {"heads", config.heads},
                 {"kv_heads", config.kv_heads},
                 {"head_dim", config.head_dim},
                 {"head_dim_v", config.head_dim_v()},
                 {"context_tokens", plan.context_tokens},
                 {"block_tokens", kBlockTokens},
                 {"blocks_per_request", plan.blocks_per_request},
                 {"blocks_max", cache.blocks_max == 0 ? ctl::Json() : ctl::Json(cache.blocks_max)},
                 {"formats", ctl::Json::array()}};
  for (const FormatPlan& format : plan.formats) {
    ctl::Json one{{"format", name(format.format)},
                  {"token_bytes", format.token_bytes},
                  {"block_bytes", format.block_bytes},
                  {"request_bytes", format.request_bytes},
                  {"tiers", ctl::Json::array()}};
    if (const auto memory = memory_of(o, plan, format, config)) one["engine"] = to_json(*memory, o);
    for (const TierRoom& room : format.tiers) {
      one["tiers"].push_back({{"tier", name(room.tier)},
                              {"capacity_bytes", room.capacity_bytes},
                              {"blocks", room.blocks},
                              {"tokens", room.tokens},
                              {"requests", room.requests}});
    }
    json["formats"].push_back(std::move(one));
  }
  return json;
}

std::string sizes_table(const CapacityPlan& plan) {
  ctl::Table table({{"FORMAT"}, {"A TOKEN", true}, {"A BLOCK", true}, {"A REQUEST", true}});
  for (const FormatPlan& format : plan.formats) {
    table.add({name(format.format), ctl::human_bytes(format.token_bytes),
               ctl::human_bytes(format.block_bytes), ctl::human_bytes(format.request_bytes)});
  }
  return table.text();
}

std::string tiers_table(const CapacityPlan& plan) {
  ctl::Table table({{"TIER"},
                    {"SIZE", true},
                    {"FORMAT"},
                    {"BLOCKS", true},
                    {"TOKENS", true},
                    {"REQUESTS", true}});
  for (std::size_t t = 0; t < plan.formats.front().tiers.size(); ++t) {
    for (const FormatPlan& format : plan.formats) {
      const TierRoom& room = format.tiers[t];
      table.add({name(room.tier), ctl::human_bytes(room.capacity_bytes), name(format.format),
                 std::to_string(room.blocks), std::to_string(room.tokens),
                 std::to_string(room.requests)});
    }
  }
  return table.text();
}

// What the tables leave open: the index is a bound of its own.
std::string index_note(const CapacityPlan& plan, const Cache& cache) {
  std::uint64_t most = 0;
  for (const FormatPlan& format : plan.formats) {
    for (const TierRoom& room : format.tiers) most = std::max(most, room.blocks);
  }
  if (cache.blocks_max == 0 || most <= cache.blocks_max) return {};
  return "\nThe index holds " + std::to_string(cache.blocks_max) +
         " blocks, fewer than a tier has room for: raise [index] blocks_max in kvtierd.toml.\n";
}

std::string heads_text(const ModelConfig& config) {
  const std::string heads = std::to_string(config.heads) + " heads";
  if (config.latent) {
    return "a latent of " + std::to_string(config.latent->kv_rank) + " and a rotary key of " +
           std::to_string(config.latent->rope_dim) + " for " + heads;
  }
  return std::to_string(config.kv_heads) + " KV heads for " + heads + " of " +
         std::to_string(config.head_dim);
}

std::string to_text(const PlanOptions& o, const CapacityPlan& plan, const ModelConfig& config,
                    const Cache& cache) {
  std::string text = std::to_string(config.layers) + " layers, " + plan.attention + " with " +
                     heads_text(config) + "; a request of " + std::to_string(plan.context_tokens) +
                     " tokens has " + std::to_string(plan.blocks_per_request) +
                     " whole blocks of " + std::to_string(kBlockTokens) + ".\n\n" +
                     sizes_table(plan);
  if (o.host.gpu_bytes != 0) text += "\n" + engine_table(o, plan, config);
  if (plan.formats.front().tiers.empty()) {
    if (o.host.gpu_bytes != 0) return text;
    return text + "\nNo tiers: give --config, --socket, or sizes such as --host-tier 64GiB.\n";
  }
  return text + "\n" + tiers_table(plan) + index_note(plan, cache);
}

// In the first format.
Result<TracePlan> plan_of_trace(const PlanOptions& o, const FormatPlan& format,
                                const Cache& cache) {
  const auto trace = daemon::read_trace(std::filesystem::path(o.trace), o.trace_block_tokens);
  if (!trace) return trace.error();
  const auto bytes_of = [&](Tier tier) {
    std::uint64_t bytes = 0;
    for (const TierPart& part : cache.parts)
      bytes += part.tier == tier ? part.capacity_bytes * part.parts : 0;
    return bytes;
  };
  return plan_trace(*trace, name(format.format), format.block_bytes, kBlockTokens,
                    bytes_of(Tier::host), bytes_of(Tier::disk));
}

int plan(const PlanOptions& given) {
  PlanOptions o = given;
  if (!o.gpu_memory.empty()) o.host.gpu_bytes = parse_size(o.gpu_memory).value();
  const auto config = read_model(o);
  if (!config) return fail(config.error());
  const auto cache = find_tiers(o);
  if (!cache) return fail(cache.error());
  std::vector<StorageFormat> formats;
  for (const std::string& format : o.formats) {
    formats.push_back(parse_storage_format(format).value());
  }
  if (formats.empty()) formats = {StorageFormat::fp8_e4m3, StorageFormat::bf16};
  const auto planned = plan_capacity(*config, o.context == 0 ? config->positions_max : o.context,
                                     formats, cache->parts);
  if (!planned) return fail(planned.error());
  std::optional<TracePlan> of_trace;
  if (!o.trace.empty()) {
    auto replayed = plan_of_trace(o, planned->formats.front(), *cache);
    if (!replayed) return fail(replayed.error());
    of_trace = std::move(*replayed);
  }
  if (o.json) {
    ctl::Json json = to_json(o, *planned, *config, *cache);
    if (of_trace) json["trace"] = to_json(*of_trace);
    std::puts(json.dump(2).c_str());
  } else {
    std::string text = to_text(o, *planned, *config, *cache);
    if (of_trace) text += "\n" + to_text(*of_trace);
    std::fputs(text.c_str(), stdout);
  }
  return kExitFine;
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  add_command(app, exit_code, "plan",
              "What a model's KV takes, and how much of it fits in the tiers", kPlanExamples,
              add_options, plan);
}

}  // namespace kvtier::engine::cli
