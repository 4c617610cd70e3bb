#include "engine_adapter/reference/model/weights/capacity.h"

#include <algorithm>
#include <array>

#include "core/base/units.h"
#include "engine_adapter/reference/model/weights/loaded_model.h"

namespace kvtier::engine {
namespace {

constexpr std::uint64_t kSegmentHeaderBytes = kRecordAlignment;

// As the daemon grows a memory tier: extents of whole records, and a shorter one at the end.
std::uint64_t records_in_memory(const TierPart& part, std::uint64_t record) {
  const std::uint64_t unit = part.unit_bytes;
  const std::uint64_t usable = part.capacity_bytes / unit * unit;
  const std::uint64_t wanted = round_up(std::max(part.container_bytes, record), unit);
  const std::uint64_t slots = std::min(wanted, usable) / record;
  if (slots == 0) return 0;
  const std::uint64_t extent = round_up(slots * record, unit);
  return usable / extent * (extent / record) + usable % extent / record;
}

std::uint64_t records_on_disk(const TierPart& part, std::uint64_t record) {
  const std::uint64_t segment = part.container_bytes;
  if (segment <= kSegmentHeaderBytes) return 0;
  return part.capacity_bytes / segment * ((segment - kSegmentHeaderBytes) / record);
}

Result<RecordLayout> layout_of(const ModelConfig& config, StorageFormat format) {
  Namespace ns;
  ns.model = "plan";
  ns.layers = config.kept_layers();
  ns.kv_heads = config.kv_heads;
  ns.head_dim_k = config.head_dim;
  ns.head_dim_v = config.head_dim_v();
  ns.block_tokens = kBlockTokens;
  ns.format = format;
  ns.positions = config.describe_positions();
  if (auto valid = ns.validate(); !valid) return valid.error();
  return RecordLayout::of(ns);
}

std::vector<TierRoom> rooms(const FormatPlan& plan, std::uint32_t blocks_per_request,
                            const std::vector<TierPart>& parts) {
  std::array<TierRoom, kTiers> by_tier{};
  for (const TierPart& part : parts) {
    TierRoom& room = by_tier[index_of(part.tier)];
    room.capacity_bytes += part.capacity_bytes * part.parts;
    room.blocks += records_in(part, plan.block_bytes);
  }
  std::vector<TierRoom> found;
  for (const Tier tier : kAllTiers) {
    TierRoom room = by_tier[index_of(tier)];
    if (room.capacity_bytes == 0) continue;
    room.tier = tier;
    room.tokens = room.blocks * kBlockTokens;
    room.requests = room.blocks / blocks_per_request;
    found.push_back(room);
  }
  return found;
}

}  // namespace

Result<StorageFormat> parse_engine_format(const std::string& text) {
  auto format = parse_storage_format(text);
  if (!format) return format;
  if (auto kept = check_engine_format(*format); !kept) return kept.error();
  return format;
}

Result<void> check_engine_format(StorageFormat format) {
  if (format != StorageFormat::raw) return {};
  return make_error(
      Errc::invalid,
      "the storage format raw is for engines whose pages only they can read, and this "
      "one has none: give f32 for what loses nothing, or fp8_e4m3, fp8_e5m2, bf16, "
      "int8 or int4");
}

const char* attention_kind(const ModelConfig& config) noexcept {
  if (config.latent) return "MLA";
  if (config.kv_heads == config.heads) return "MHA";
  return config.kv_heads == 1 ? "MQA" : "GQA";
}

std::uint64_t records_in(const TierPart& part, std::uint64_t record_bytes) noexcept {
  const auto count = part.tier == Tier::disk ? records_on_disk : records_in_memory;
  return count(part, record_bytes) * part.parts;
}

Result<CapacityPlan> plan_capacity(const ModelConfig& config, std::uint32_t context_tokens,
                                   const std::vector<StorageFormat>& formats,
                                   const std::vector<TierPart>& parts) {
  if (context_tokens < kBlockTokens || context_tokens > config.positions_max) {
    return make_error(Errc::invalid, "a context of " + std::to_string(context_tokens) +
                                         " tokens: give one of " + std::to_string(kBlockTokens) +
                                         " (a block) to " + std::to_string(config.positions_max) +
                                         " (max_position_embeddings)");
  }
  CapacityPlan plan{attention_kind(config), context_tokens, context_tokens / kBlockTokens, {}};
  for (const StorageFormat format : formats) {
    const auto layout = layout_of(config, format);
    if (!layout) return layout.error();
    FormatPlan one{format, layout->payload_bytes / kBlockTokens, layout->record_bytes, 0, {}};
    one.request_bytes = one.block_bytes * plan.blocks_per_request;
    one.tiers = rooms(one, plan.blocks_per_request, parts);
    plan.formats.push_back(std::move(one));
  }
  return plan;
}

}  // namespace kvtier::engine
