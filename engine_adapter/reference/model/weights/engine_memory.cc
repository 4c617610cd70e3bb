#include "engine_adapter/reference/model/weights/engine_memory.h"

#include <algorithm>

#include "core/base/units.h"

namespace kvtier::engine {
namespace {

std::uint64_t parts_of(std::uint64_t whole, std::uint64_t parts) noexcept {
  return (whole + parts - 1) / parts;
}

// Of the attention of a layer.
std::uint64_t latent_parameters_of(const ModelConfig& config) noexcept {
  const LatentShape& shape = *config.latent;
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t heads = config.heads;
  const std::uint64_t q = heads * (shape.nope_dim + shape.rope_dim);
  const std::uint64_t queries = shape.q_rank != 0 ? shape.q_rank * (hidden + q + 1) : hidden * q;
  return queries + hidden * config.head_dim + shape.kv_rank +
         heads * (shape.nope_dim + shape.v_dim) * shape.kv_rank + heads * shape.v_dim * hidden;
}

}  // namespace

std::uint64_t parameters_of(const ModelConfig& config) noexcept {
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t q = std::uint64_t{config.heads} * config.head_dim;
  const std::uint64_t kv = std::uint64_t{config.kv_heads} * config.head_dim;
  const std::uint64_t inner = config.intermediate_size;
  std::uint64_t layer =
      config.latent ? latent_parameters_of(config) : hidden * (q + 2 * kv) + q * hidden;
  layer += 3 * hidden * inner + 2 * hidden;
  if (config.qkv_bias) layer += q + 2 * kv;
  if (config.output_bias) layer += hidden;
  if (config.mlp_bias) layer += 2 * inner + hidden;
  if (config.qk_norm) layer += 2 * std::uint64_t{config.head_dim};
  const std::uint64_t embedding = config.vocab_size * hidden;
  // What layers lack whose K and V are another's.
  std::uint64_t of_kv = 2 * kv * hidden;
  if (config.qkv_bias) of_kv += 2 * kv;
  if (config.qk_norm) of_kv += config.head_dim;
  const std::uint64_t lacking = (config.layers - config.kept_layers()) * of_kv;
  return config.layers * layer - lacking + hidden + (config.tied_embeddings ? 1 : 2) * embedding;
}

std::uint64_t activation_bytes_of(const ModelConfig& config, const EngineHost& host) noexcept {
  const std::uint64_t q = std::uint64_t{config.heads} * config.head_dim;
  const std::uint64_t kv = std::uint64_t{config.kv_heads} * (config.head_dim + config.head_dim_v());
  // A row's residual in FP32 and two of its size in BF16 are whole on each GPU; the rest is cut.
  const std::uint64_t whole = config.hidden_size * (4 + 2 + 2ULL);
  const std::uint64_t cut = 2 * ((q + kv) + 2 * q + 3 * std::uint64_t{config.intermediate_size});
  // Of the rows' K and V as computed, in one layer, or in all that are still attended to.
  const std::uint64_t pages = 2 * kv * (config.looks_back() ? config.kept_layers() : 1);
  const std::uint64_t logits = 4ULL * config.vocab_size * host.answers;
  return host.step_tokens * (whole + parts_of(cut + pages, host.gpus)) +
         parts_of(logits, host.gpus);
}

EngineMemory plan_engine_memory(const ModelConfig& config, const FormatPlan& format,
                                std::uint32_t context_tokens, const EngineHost& host,
                                const SharedUsers& users) noexcept {
  EngineMemory memory;
  memory.parameters = parameters_of(config);
  memory.weight_bytes = parts_of(memory.parameters * host.weight_bits / 8, host.gpus);
  memory.activation_bytes = activation_bytes_of(config, host);
  const auto usable =
      static_cast<std::uint64_t>(static_cast<double>(host.gpu_bytes) * host.utilization);
  const std::uint64_t taken = memory.weight_bytes + memory.activation_bytes;
  memory.kv_bytes = usable > taken ? usable - taken : 0;
  memory.missing_bytes = taken > usable ? taken - usable : 0;

  const std::uint64_t heads_there = parts_of(config.kv_heads, host.gpus);
  memory.token_bytes = format.token_bytes * heads_there / config.kv_heads;
  const std::uint64_t kept = config.head_dim + std::uint64_t{config.head_dim_v()};
  const std::uint64_t head =
      config.latent ? config.latent->nope_dim + config.latent->rope_dim + config.latent->v_dim
                    : kept;
  memory.mha_token_bytes = format.token_bytes * config.heads * head / (config.kv_heads * kept);
  // A page is a record, which is longer than its tokens.
  const std::uint64_t page_bytes = format.block_bytes * heads_there / config.kv_heads;
  memory.tokens = memory.kv_bytes / page_bytes * kBlockTokens;
  const auto pages_of = [](std::uint64_t tokens) { return parts_of(tokens, kBlockTokens); };
  memory.requests = memory.tokens / kBlockTokens / pages_of(context_tokens);
  const std::uint64_t shared =
      std::uint64_t{std::min(users.shared_tokens, context_tokens)} / kBlockTokens * kBlockTokens;
  memory.users_tokens_apart = users.users * pages_of(context_tokens) * kBlockTokens;
  memory.users_tokens =
      users.users == 0 ? 0 : memory.users_tokens_apart - (users.users - 1) * shared;
  return memory;
}

}  // namespace kvtier::engine
