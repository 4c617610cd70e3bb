// What a model's KV takes, and how much of it a cache holds: arithmetic over shapes, for planning.
// Nothing is loaded and no memory is taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine_adapter/reference/model/weights/model_config.h"
#include "kvtier/namespace.h"
#include "kvtier/record_layout.h"
#include "kvtier/tier.h"

namespace kvtier::engine {

// Equal parts of one tier: host memory, GPUs, disk directories.
struct TierPart {
  Tier tier = Tier::host;
  std::uint64_t capacity_bytes = 0;             // of each part
  std::uint64_t container_bytes = 0;            // extents, or segments, which hold whole records
  std::uint64_t unit_bytes = kRecordAlignment;  // memory is taken in multiples of this
  std::uint32_t parts = 1;
};

struct TierRoom {
  Tier tier = Tier::host;
  std::uint64_t capacity_bytes = 0;  // of all parts
  std::uint64_t blocks = 0;
  std::uint64_t tokens = 0;
  std::uint64_t requests = 0;  // whole ones, none of which has a block in common with another
};

// In one storage format.
struct FormatPlan {
  StorageFormat format = StorageFormat::fp8_e4m3;
  std::uint64_t token_bytes = 0;    // K and V of all layers, without headers and scales
  std::uint64_t block_bytes = 0;    // the record: header, proof, scales, payload
  std::uint64_t request_bytes = 0;  // the records of blocks_per_request
  std::vector<TierRoom> tiers;      // in the order of the tiers, each at most once
};

struct CapacityPlan {
  std::string attention;  // "MHA", "GQA" or "MQA"
  std::uint32_t context_tokens = 0;
  std::uint32_t blocks_per_request = 0;  // whole blocks; what is left over is not cached
  std::vector<FormatPlan> formats;
};

// The formats that this engine stores in: all but raw. Errors: invalid, naming the choices.
Result<StorageFormat> parse_engine_format(const std::string& text);
Result<void> check_engine_format(StorageFormat format);

// One KV head for every query head, one for all, or one for a group of them.
const char* attention_kind(const ModelConfig& config) noexcept;

// How many records of `record_bytes` the part holds.
std::uint64_t records_in(const TierPart& part, std::uint64_t record_bytes) noexcept;

// Parts of one tier may be given apart; they are added up. Errors: invalid (the context is shorter
// than a block or longer than the model takes; the model is beyond kNamespaceLimits).
Result<CapacityPlan> plan_capacity(const ModelConfig& config, std::uint32_t context_tokens,
                                   const std::vector<StorageFormat>& formats,
                                   const std::vector<TierPart>& parts);

}  // namespace kvtier::engine
