#include "engine_adapter/reference/model/cuda/cuda_weights.h"

#include <algorithm>
#include <initializer_list>

#include "core/base/check.h"
#include "engine_adapter/reference/model/cuda/draw.h"
#include "engine_adapter/reference/model/weights/random_weights.h"
#include "kernels/cuda/latent/latent.h"

namespace kvtier::engine::cuda {
namespace {

using kernels::cuda::check;

constexpr std::size_t kConvertElements = std::size_t{1} << 22;

void copy_converted(const void* from, DType type, Bf16* to, std::size_t count) {
  if (type == DType::bf16) {
    check(cudaMemcpy(to, from, count * sizeof(Bf16), cudaMemcpyHostToDevice), "cudaMemcpy");
    return;
  }
  std::vector<Bf16> piece(std::min(count, kConvertElements));
  for (std::size_t at = 0; at < count; at += piece.size()) {
    const std::size_t elements = std::min(piece.size(), count - at);
    kernels::cpu_kernels().convert(static_cast<const std::byte*>(from) + at * bytes_of(type), type,
                                   piece.data(), DType::bf16, elements);
    check(cudaMemcpy(to + at, piece.data(), elements * sizeof(Bf16), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
}

void fill(const Matrix& matrix, std::size_t rows, std::size_t columns, Bf16* to) {
  if (matrix.data == nullptr) {
    draw(to, rows * columns, matrix.seed, matrix_spread(columns), StreamView());
  } else {
    copy_converted(matrix.data, matrix.type, to, rows * columns);
  }
}

DeviceArray<Bf16> matrix_of(const Matrix& matrix, std::size_t rows, std::size_t columns) {
  DeviceArray<Bf16> made(rows * columns);
  fill(matrix, rows, columns, made.get());
  return made;
}

struct RowsOf {
  const Linear* linear;
  std::size_t rows;
};

// The rows of all parts, one part after another.
CudaLinear joined(std::initializer_list<RowsOf> parts, std::size_t columns) {
  std::size_t rows = 0;
  for (const RowsOf& part : parts) rows += part.rows;
  const bool bias = !parts.begin()->linear->bias.empty();
  CudaLinear made{DeviceArray<Bf16>(rows * columns), DeviceArray<Bf16>(bias ? rows : 0)};
  std::size_t at = 0;
  for (const RowsOf& part : parts) {
    KVTIER_CHECK(part.linear->bias.size() == (bias ? part.rows : 0));
    fill(part.linear->weight, part.rows, columns, made.weight.get() + at * columns);
    if (bias) copy_converted(part.linear->bias.data(), DType::f32, made.bias.get() + at, part.rows);
    at += part.rows;
  }
  return made;
}

CudaLatentLayer latent_of(const LlamaLayer& layer, const ModelConfig& config) {
  const LatentShape& shape = *config.latent;
  const std::size_t hidden = config.hidden_size;
  const std::size_t q_size = std::size_t{config.heads} * (shape.nope_dim + shape.rope_dim);
  CudaLatentLayer made;
  if (shape.q_rank != 0) {
    made.q_a = joined({{&layer.latent.q_a, shape.q_rank}}, hidden);
    made.q_a_norm = DeviceArray<float>(layer.latent.q_a_norm);
  }
  made.q = joined({{&layer.q, q_size}}, shape.q_rank != 0 ? shape.q_rank : hidden);
  made.kv_a = joined({{&layer.latent.kv_a, config.head_dim}}, hidden);
  made.kv_a_norm = DeviceArray<float>(layer.latent.kv_a_norm);
  made.kv_b = matrix_of(layer.latent.kv_b.weight,
                        std::size_t{config.heads} * (shape.nope_dim + shape.v_dim), shape.kv_rank);
  made.keys = DeviceArray<Bf16>(std::size_t{config.heads} * shape.kv_rank * shape.nope_dim);
  kernels::cuda::transpose_keys(made.kv_b.get(), made.keys.get(), config.heads, shape.nope_dim,
                                shape.v_dim, shape.kv_rank, StreamView());
  return made;
}

CudaLayer layer_of(const LlamaLayer& layer, const ModelConfig& config, bool own_kv) {
  const std::size_t hidden = config.hidden_size;
  const std::size_t q_size = std::size_t{config.heads} * config.head_dim;
  const std::size_t kv_size = std::size_t{config.kv_heads} * config.head_dim;
  const std::size_t inner = config.intermediate_size;
  CudaLayer made;
  made.input_norm = DeviceArray<float>(layer.input_norm);
  if (config.latent) {
    made.latent = latent_of(layer, config);
  } else if (own_kv) {
    made.qkv = joined({{&layer.q, q_size}, {&layer.k, kv_size}, {&layer.v, kv_size}}, hidden);
  } else {
    made.qkv = joined({{&layer.q, q_size}}, hidden);
  }
  made.q_norm = DeviceArray<float>(layer.q_norm);
  made.k_norm = DeviceArray<float>(layer.k_norm);
  made.o = joined({{&layer.o, hidden}}, std::size_t{config.heads} * config.result_dim());
  made.post_attention_norm = DeviceArray<float>(layer.post_attention_norm);
  made.gate_up = joined({{&layer.gate, inner}, {&layer.up, inner}}, hidden);
  made.down = joined({{&layer.down, hidden}}, inner);
  return made;
}

}  // namespace

CudaWeights CudaWeights::make(const LlamaWeights& weights, const ModelConfig& config) {
  CudaWeights made;
  made.embedding = matrix_of(weights.embedding, config.vocab_size, config.hidden_size);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    made.layers.push_back(layer_of(weights.layers[i], config, config.has_own_kv(i)));
  }
  made.norm = DeviceArray<float>(weights.norm);
  if (!config.tied_embeddings) {
    made.own_head = matrix_of(weights.head, config.vocab_size, config.hidden_size);
  }
  check(cudaDeviceSynchronize(), "drawing or copying the weights");
  return made;
}

}  // namespace kvtier::engine::cuda
