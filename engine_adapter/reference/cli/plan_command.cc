#include "core/base/sizes.h"
#include "core/base/units.h"
#include "core/terminal/table.h"
#include "core/terminal/units.h"
#include "ctl/commands.h"
#include "daemon/config/config.h"
#include "daemon/config/host_memory.h"
#include "engine_adapter/reference/cli/command.h"
#include "engine_adapter/reference/cli/plan_trace.h"
#include "engine_adapter/reference/model/weights/capacity.h"
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
  from->add_option("--random-weights", o.shape,
                   "A shape: llama-3.1-8b, llama-3.2-1b, qwen2.5-7b, qwen3-8b, tiny, or a "
                   "config.json");
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

ctl::Json to_json(const CapacityPlan& plan, const ModelConfig& config, const Cache& cache) {
  ctl::Json json{{"attention", plan.attention},
                 {"layers", config.layers},
                 {"heads", config.heads},
                 {"kv_heads", config.kv_heads},
                 {"head_dim", config.head_dim},
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

std::string to_text(const CapacityPlan& plan, const ModelConfig& config, const Cache& cache) {
  std::string text = std::to_string(config.layers) + " layers, " + plan.attention + " with " +
                     std::to_string(config.kv_heads) + " KV heads for " +
                     std::to_string(config.heads) + " heads of " + std::to_string(config.head_dim) +
                     "; a request of " + std::to_string(plan.context_tokens) + " tokens has " +
                     std::to_string(plan.blocks_per_request) + " whole blocks of " +
                     std::to_string(kBlockTokens) + ".\n\n" + sizes_table(plan);
  if (plan.formats.front().tiers.empty()) {
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

int plan(const PlanOptions& o) {
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
    ctl::Json json = to_json(*planned, *config, *cache);
    if (of_trace) json["trace"] = to_json(*of_trace);
    std::puts(json.dump(2).c_str());
  } else {
    std::string text = to_text(*planned, *config, *cache);
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
