#include "engine_adapter/reference/model/weights/llama_weights.h"

#include <algorithm>
#include <optional>
#include <set>

namespace kvtier::engine {
namespace {

// Takes tensors by name, remembers the first error and which were taken.
class Binder {
 public:
  Binder(const SafeTensors& tensors, const kernels::KernelTable& kernels, LlamaWeights& weights)
      : tensors_(tensors), kernels_(kernels), weights_(weights) {}

  Matrix matrix(const std::string& tensor_name, std::uint64_t rows, std::uint64_t columns) {
    const Tensor* tensor = take(tensor_name, {rows, columns});
    if (tensor == nullptr) return {};
    const void* data = tensor->bytes.data();
    if (reinterpret_cast<std::uintptr_t>(data) % bytes_of(tensor->type) != 0) {
      data = weights_.moved.emplace_back(tensor->bytes.begin(), tensor->bytes.end()).data();
    }
    return {.data = data, .type = type_of(*tensor)};
  }

  std::vector<float> vector(const std::string& tensor_name, std::uint64_t count) {
    const Tensor* tensor = take(tensor_name, {count});
    if (tensor == nullptr) return {};
    const std::vector<std::byte> aligned(tensor->bytes.begin(), tensor->bytes.end());
    std::vector<float> values(count);
    kernels_.convert(aligned.data(), type_of(*tensor), values.data(), DType::f32, count);
    return values;
  }

  Linear linear(const std::string& prefix, std::uint64_t rows, std::uint64_t columns, bool bias) {
    Linear part{matrix(prefix + ".weight", rows, columns), {}};
    if (bias) part.bias = vector(prefix + ".bias", rows);
    return part;
  }

  // `copy`, where it is there, is `original` once more: a head that is said to be the embedding.
  void same(const std::string& copy, const std::string& original) {
    const auto found = tensors_.find(copy);
    const auto first = tensors_.find(original);
    if (!found || !first) return;
    taken_.insert(copy);
    const Tensor& a = **found;
    const Tensor& b = **first;
    if (a.type == b.type && a.shape == b.shape && std::ranges::equal(a.bytes, b.bytes)) return;
    fail(make_error(Errc::invalid,
                    "tensor " + copy + " " + a.describe() + " is not the same as " + original +
                        ", though config.json says so (tie_word_embeddings = true): set that to "
                        "false if the model has a head of its own, or remove the tensor"));
  }

  // A tensor nobody took means arithmetic we do not do, save for what is known to be derived.
  void check_all_taken(std::uint32_t layers) {
    std::set<std::string> derived{"model.rotary_emb.inv_freq"};
    for (std::uint32_t i = 0; i < layers; ++i) {
      derived.insert("model.layers." + std::to_string(i) + ".self_attn.rotary_emb.inv_freq");
    }
    for (const auto& [tensor_name, tensor] : tensors_.tensors()) {
      if (!derived.contains(tensor_name) && !taken_.contains(tensor_name)) {
        fail(make_error(Errc::invalid, "tensor " + tensor_name + " " + tensor.describe() +
                                           " has no place in a model with this config.json"));
      }
    }
  }

  const std::optional<Error>& error() const noexcept { return error_; }

 private:
  static DType type_of(const Tensor& tensor) noexcept {
    return tensor.type == ElementType::f16    ? DType::f16
           : tensor.type == ElementType::bf16 ? DType::bf16
                                              : DType::f32;
  }

  const Tensor* take(const std::string& tensor_name, const std::vector<std::uint64_t>& shape) {
    taken_.insert(tensor_name);
    const auto found = tensors_.find(tensor_name);
    if (!found) {
      fail(found.error());
      return nullptr;
    }
    const Tensor& tensor = **found;
    if (tensor.shape != shape || tensor.type == ElementType::i32) {
      const Tensor wanted{ElementType::f32, shape, {}};
      fail(make_error(Errc::malformed, "tensor " + tensor_name + " is " + tensor.describe() +
                                           "; config.json wants " + wanted.describe() +
                                           ", or F16 or BF16 of that shape"));
      return nullptr;
    }
    return &tensor;
  }

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

  const SafeTensors& tensors_;
  const kernels::KernelTable& kernels_;
  LlamaWeights& weights_;
  std::set<std::string> taken_;
  std::optional<Error> error_;
};

void bind_latent(Binder& binder, const std::string& attention, const ModelConfig& config,
                 LlamaLayer& layer) {
  const LatentShape& shape = *config.latent;
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t heads = config.heads;
  const std::uint64_t q_size = heads * (shape.nope_dim + shape.rope_dim);
  LatentWeights& latent = layer.latent;
  if (shape.q_rank != 0) {
    latent.q_a = binder.linear(attention + "q_a_proj", shape.q_rank, hidden, false);
    latent.q_a_norm = binder.vector(attention + "q_a_layernorm.weight", shape.q_rank);
    layer.q = binder.linear(attention + "q_b_proj", q_size, shape.q_rank, false);
  } else {
    layer.q = binder.linear(attention + "q_proj", q_size, hidden, false);
  }
  latent.kv_a = binder.linear(attention + "kv_a_proj_with_mqa", config.head_dim, hidden, false);
  latent.kv_a_norm = binder.vector(attention + "kv_a_layernorm.weight", shape.kv_rank);
  latent.kv_b = binder.linear(attention + "kv_b_proj", heads * (shape.nope_dim + shape.v_dim),
                              shape.kv_rank, false);
  layer.o = binder.linear(attention + "o_proj", hidden, heads * shape.v_dim, false);
}

void bind_attention(Binder& binder, const std::string& attention, const ModelConfig& config,
                    bool own_kv, LlamaLayer& layer) {
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t q_size = std::uint64_t{config.heads} * config.head_dim;
  const std::uint64_t kv_size = std::uint64_t{config.kv_heads} * config.head_dim;
  layer.q = binder.linear(attention + "q_proj", q_size, hidden, config.qkv_bias);
  if (own_kv) {
    layer.k = binder.linear(attention + "k_proj", kv_size, hidden, config.qkv_bias);
    layer.v = binder.linear(attention + "v_proj", kv_size, hidden, config.qkv_bias);
  }
  layer.o = binder.linear(attention + "o_proj", hidden, q_size, config.output_bias);
  if (!config.qk_norm) return;
  layer.q_norm = binder.vector(attention + "q_norm.weight", config.head_dim);
  if (own_kv) layer.k_norm = binder.vector(attention + "k_norm.weight", config.head_dim);
}

LlamaLayer bind_layer(Binder& binder, std::uint32_t number, const ModelConfig& config) {
  const std::string prefix = "model.layers." + std::to_string(number) + ".";
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t inner = config.intermediate_size;
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  LlamaLayer layer;
  layer.input_norm = binder.vector(prefix + "input_layernorm.weight", hidden);
  if (config.latent) {
    bind_latent(binder, attention, config, layer);
  } else {
    bind_attention(binder, attention, config, config.has_own_kv(number), layer);
  }
  layer.post_attention_norm = binder.vector(prefix + "post_attention_layernorm.weight", hidden);
  layer.gate = binder.linear(mlp + "gate_proj", inner, hidden, config.mlp_bias);
  layer.up = binder.linear(mlp + "up_proj", inner, hidden, config.mlp_bias);
  layer.down = binder.linear(mlp + "down_proj", hidden, inner, config.mlp_bias);
  return layer;
}

}  // namespace

Result<LlamaWeights> LlamaWeights::bind(const SafeTensors& tensors, const ModelConfig& config,
                                        const kernels::KernelTable& kernels) {
  LlamaWeights weights;
  Binder binder(tensors, kernels, weights);
  weights.embedding =
      binder.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  for (std::uint32_t i = 0; i < config.layers && !binder.error(); ++i) {
    weights.layers.push_back(bind_layer(binder, i, config));
  }
  weights.norm = binder.vector("model.norm.weight", config.hidden_size);
  if (config.tied_embeddings) {
    weights.head = weights.embedding;
    binder.same("lm_head.weight", "model.embed_tokens.weight");
  } else {
    weights.head = binder.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  }
  binder.check_all_taken(config.layers);
  if (binder.error()) return *binder.error();
  return weights;
}

}  // namespace kvtier::engine
