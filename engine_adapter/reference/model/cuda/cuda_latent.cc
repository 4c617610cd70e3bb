#include "engine_adapter/reference/model/cuda/cuda_latent.h"

#include <algorithm>

#include "kernels/table.h"

namespace kvtier::engine::cuda {

namespace kc = kernels::cuda;

CudaLatent::CudaLatent(const ModelConfig& config, const RecordLayout& layout, std::size_t rows_max)
    : config_(config),
      shape_(*config.latent),
      layout_(layout),
      q_factor_(config.rope_scaling.attention_factor * config.rope_scaling.attention_factor),
      inverse_frequencies_(kernels::rope_inverse_frequencies(shape_.rope_dim, config.rope_theta,
                                                             config.rope_scaling)),
      q_latent_(rows_max * shape_.q_rank),
      q_normed_(rows_max * shape_.q_rank),
      projected_(rows_max * config.heads * (shape_.nope_dim + shape_.rope_dim)),
      kv_(rows_max * config.head_dim),
      values_(rows_max * config.heads * shape_.v_dim) {}

void CudaLatent::project(const CudaPlan& plan, std::uint32_t layer, const CudaLatentLayer& weights,
                         const Bf16* normed, Bf16* q, CudaProducts& products, StreamView stream) {
  const std::size_t hidden = config_.hidden_size;
  const std::size_t head = shape_.nope_dim + shape_.rope_dim;
  const std::size_t q_size = config_.heads * head;
  const std::size_t kept = config_.head_dim;
  products.run(plan, weights.kv_a, normed, kv_.get(), kept, hidden, stream);
  if (shape_.q_rank == 0) {
    products.run(plan, weights.q, normed, projected_.get(), q_size, hidden, stream);
  } else {
    products.run(plan, weights.q_a, normed, q_latent_.get(), shape_.q_rank, hidden, stream);
    kc::rms_norm_rows(q_latent_.get(), weights.q_a_norm.get(), q_normed_.get(), plan.step.rows,
                      shape_.q_rank, kLatentEpsilon, stream);
    products.run(plan, weights.q, q_normed_.get(), projected_.get(), q_size, shape_.q_rank, stream);
  }
  products.run_heads(plan,
                     {.heads = config_.heads,
                      .n = shape_.kv_rank,
                      .k = shape_.nope_dim,
                      .x = projected_.get(),
                      .x_row = q_size,
                      .x_head = head,
                      .w = weights.keys.get(),
                      .w_head = std::size_t{shape_.kv_rank} * shape_.nope_dim,
                      .out = q,
                      .out_row = config_.heads * kept,
                      .out_head = kept},
                     stream);
  kc::store_latent({.step = plan.step,
                    .layer = layer,
                    .heads = config_.heads,
                    .kv_rank = shape_.kv_rank,
                    .rope_dim = shape_.rope_dim,
                    .nope_dim = shape_.nope_dim,
                    .interleaved = shape_.interleaved_rope,
                    .kv = kv_.get(),
                    .kv_norm = weights.kv_a_norm.get(),
                    .epsilon = kLatentEpsilon,
                    .projected = projected_.get(),
                    .q = q,
                    .q_factor = q_factor_,
                    .inverse_frequencies = inverse_frequencies_.get()},
                   stream);
}

// Of the rows of Stage::answer: those that attend alone, and ends of prompts.
std::uint32_t CudaLatent::context_max(const CudaPlan& plan) const {
  std::uint32_t most = plan.context_max;
  for (const PrefillPiece& piece : plan.pieces) {
    if (piece.stage == Stage::answer) most = std::max(most, piece.start + piece.rows);
  }
  return most;
}

std::size_t CudaLatent::workspace_bytes(const CudaPlan& plan) const {
  return kc::latent_workspace_bytes(plan.answer_rows, config_.heads, shape_.kv_rank,
                                    context_max(plan));
}

const Bf16* CudaLatent::attend(const CudaPlan& plan, std::uint32_t layer,
                               const CudaLatentLayer& weights, const Bf16* q, Bf16* attended,
                               void* workspace, CudaProducts& products, StreamView stream) {
  kc::LatentAttentionArgs args;
  args.layout = layout_;
  args.step = plan.step;
  args.layer = layer;
  args.heads = config_.heads;
  args.value_channels = shape_.kv_rank;
  args.scale = config_.attention_scale();
  args.q = q;
  args.out = attended;
  // Few rows share the card by parts of their contexts; of a prompt there are rows enough.
  args.rows = plan.answer_rows;
  args.split = true;
  args.context_max = context_max(plan);
  args.workspace = workspace;
  kc::latent_attention(args, stream);
  args.first_row = plan.answer_rows;
  args.rows = plan.step.rows - plan.answer_rows;
  args.split = false;
  kc::latent_attention(args, stream);

  const std::size_t of_head = std::size_t{shape_.nope_dim} + shape_.v_dim;  // rows of kv_b
  products.run_heads(plan,
                     {.heads = config_.heads,
                      .n = shape_.v_dim,
                      .k = shape_.kv_rank,
                      .x = attended,
                      .x_row = std::size_t{config_.heads} * shape_.kv_rank,
                      .x_head = shape_.kv_rank,
                      .w = weights.kv_b.get() + std::size_t{shape_.nope_dim} * shape_.kv_rank,
                      .w_head = of_head * shape_.kv_rank,
                      .out = values_.get(),
                      .out_row = std::size_t{config_.heads} * shape_.v_dim,
                      .out_head = shape_.v_dim},
                     stream);
  return values_.get();
}

}  // namespace kvtier::engine::cuda
