#include "engine_adapter/reference/model/latent_attention.h"

#include <algorithm>

#include "core/base/check.h"

namespace kvtier::engine {
LatentAttention::LatentAttention(const ModelConfig& config, const LlamaWeights& weights,
                                 const kernels::KernelTable& kernels, std::uint32_t rows_max)
    : config_(config),
      shape_(*config.latent),
      weights_(weights),
      kernels_(kernels),
      inverse_frequencies_(kernels::rope_inverse_frequencies(shape_.rope_dim, config.rope_theta,
                                                             config.rope_scaling)),
      q_rope_factor_(config.rope_scaling.attention_factor * config.rope_scaling.attention_factor) {
  const std::size_t rows = rows_max;
  const std::size_t heads = config.heads;
  const std::size_t nope = shape_.nope_dim;
  const std::size_t rank = shape_.kv_rank;
  q_latent_.resize(rows * shape_.q_rank);
  q_.resize(rows * heads * (nope + shape_.rope_dim));
  q_rope_.resize(rows * heads * shape_.rope_dim);
  kv_.resize(rows * config.head_dim);
  latents_.resize(rows * rank);
  k_rope_.resize(rows * shape_.rope_dim);
  in_.resize(rows * std::max(nope, rank));
  out_.resize(rows * std::max<std::size_t>(rank, shape_.v_dim));

  std::vector<float> row(rank);
  for (const LlamaLayer& layer : weights.layers) {
    KVTIER_CHECK(layer.latent.kv_b.weight.data != nullptr);
    auto& transposed = key_weights_.emplace_back(heads * rank * nope);
    for (std::size_t head = 0; head < heads; ++head) {
      float* const of_head = transposed.data() + head * rank * nope;
      for (std::size_t i = 0; i < nope; ++i) {
        kernels.convert(kv_b_row(layer, head * (nope + shape_.v_dim) + i),
                        layer.latent.kv_b.weight.type, row.data(), DType::f32, rank);
        for (std::size_t channel = 0; channel < rank; ++channel) {
          of_head[channel * nope + i] = row[channel];
        }
      }
    }
  }
}

const std::byte* LatentAttention::kv_b_row(const LlamaLayer& layer,
                                           std::size_t row) const noexcept {
  const Matrix& matrix = layer.latent.kv_b.weight;
  return static_cast<const std::byte*>(matrix.data) + row * shape_.kv_rank * bytes_of(matrix.type);
}

// Pairs that lie side by side go to where the rotation expects them. Scores do not see the order,
// which is the same in queries and keys.
void LatentAttention::copy_rope_part(const float* from, float* to) const {
  const std::size_t half = shape_.rope_dim / 2;
  if (!shape_.interleaved_rope) {
    std::copy_n(from, shape_.rope_dim, to);
    return;
  }
  for (std::size_t i = 0; i < half; ++i) {
    to[i] = from[2 * i];
    to[half + i] = from[2 * i + 1];
  }
}

void LatentAttention::project_queries(std::uint32_t layer, const float* normed,
                                      std::uint32_t rows) {
  const LlamaLayer& weights = weights_.layers[layer];
  const std::size_t q_size = std::size_t{config_.heads} * (shape_.nope_dim + shape_.rope_dim);
  const Matrix& q = weights.q.weight;
  if (shape_.q_rank == 0) {
    kernels_.gemm(normed, q.data, q.type, nullptr, q_.data(), rows, q_size, config_.hidden_size);
    return;
  }
  const Matrix& q_a = weights.latent.q_a.weight;
  kernels_.gemm(normed, q_a.data, q_a.type, nullptr, q_latent_.data(), rows, shape_.q_rank,
                config_.hidden_size);
  kernels_.rms_norm(q_latent_.data(), weights.latent.q_a_norm.data(), q_latent_.data(), rows,
                    shape_.q_rank, kLatentEpsilon);
  kernels_.gemm(q_latent_.data(), q.data, q.type, nullptr, q_.data(), rows, q_size, shape_.q_rank);
}

void LatentAttention::project(std::uint32_t layer, const float* normed, std::uint32_t rows,
                              const std::uint32_t* positions, float* q, float* k) {
  const LatentWeights& weights = weights_.layers[layer].latent;
  const std::size_t heads = config_.heads;
  const std::size_t nope = shape_.nope_dim;
  const std::size_t rope = shape_.rope_dim;
  const std::size_t rank = shape_.kv_rank;
  const std::size_t kept = rank + rope;

  kernels_.gemm(normed, weights.kv_a.weight.data, weights.kv_a.weight.type, nullptr, kv_.data(),
                rows, kept, config_.hidden_size);
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy_n(kv_.data() + row * kept, rank, latents_.data() + row * rank);
    copy_rope_part(kv_.data() + row * kept + rank, k_rope_.data() + row * rope);
  }
  kernels_.rms_norm(latents_.data(), weights.kv_a_norm.data(), latents_.data(), rows, rank,
                    kLatentEpsilon);
  kernels_.rope(k_rope_.data(), rows, 1, rope, positions, inverse_frequencies_.data());
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy_n(latents_.data() + row * rank, rank, k + row * kept);
    std::copy_n(k_rope_.data() + row * rope, rope, k + row * kept + rank);
  }

  project_queries(layer, normed, rows);
  for (std::size_t i = 0; i < rows * heads; ++i) {
    copy_rope_part(q_.data() + i * (nope + rope) + nope, q_rope_.data() + i * rope);
  }
  kernels_.rope(q_rope_.data(), rows, heads, rope, positions, inverse_frequencies_.data());
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::copy_n(q_.data() + (row * heads + head) * (nope + rope), nope, in_.data() + row * nope);
    }
    kernels_.gemm(in_.data(), key_weights_[layer].data() + head * rank * nope, DType::f32, nullptr,
                  out_.data(), rows, rank, nope);
    for (std::size_t row = 0; row < rows; ++row) {
      float* const to = q + (row * heads + head) * kept;
      std::copy_n(out_.data() + row * rank, rank, to);
      const float* const rotated = q_rope_.data() + (row * heads + head) * rope;
      std::transform(rotated, rotated + rope, to + rank,
                     [this](float value) { return value * q_rope_factor_; });
    }
  }
}

void LatentAttention::take_values(std::uint32_t layer, const float* mixed, std::uint32_t rows,
                                  float* out) {
  const LlamaLayer& weights = weights_.layers[layer];
  const std::size_t heads = config_.heads;
  const std::size_t rank = shape_.kv_rank;
  const std::size_t dim = shape_.v_dim;
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::copy_n(mixed + (row * heads + head) * rank, rank, in_.data() + row * rank);
    }
    kernels_.gemm(in_.data(), kv_b_row(weights, head * (shape_.nope_dim + dim) + shape_.nope_dim),
                  weights.latent.kv_b.weight.type, nullptr, out_.data(), rows, dim, rank);
    for (std::size_t row = 0; row < rows; ++row) {
      std::copy_n(out_.data() + row * dim, dim, out + (row * heads + head) * dim);
    }
  }
}

}  // namespace kvtier::engine
