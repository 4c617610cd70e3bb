#include "engine_adapter/reference/model/weights/random_weights.h"

#include <cstring>

#include "engine_adapter/reference/model/sampler.h"

namespace kvtier::engine {
namespace {

constexpr float kVectorSpread = 0.1F;

struct KnownShape {
  const char* name;
  const char* config;
};

constexpr KnownShape kShapes[] = {
    {"llama-3.1-8b", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
      "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})"},
    {"llama-3.2-1b", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
      "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
      "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})"},
    {"llama-3.1-70b", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
      "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}})"},
    {"qwen2.5-7b", R"({"architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064,
      "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
      "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-6, "rope_theta": 1000000.0})"},
    {"qwen3-8b", R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936,
      "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
      "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0})"},
    {"tiny-mla", R"({"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 2048,
      "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
      "num_attention_heads": 8, "first_k_dense_replace": 4, "q_lora_rank": 96, "kv_lora_rank": 64,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
      "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0})"},
    {"tiny", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 2048, "hidden_size": 256,
      "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0})"},
};

// Hands every tensor a seed of its own, in one order.
class Drawer {
 public:
  explicit Drawer(std::uint64_t seed) : seeds_(seed) {}

  Matrix matrix() { return {.data = nullptr, .type = DType::bf16, .seed = seeds_.next()}; }
  std::vector<float> vector(std::uint64_t count, float centre) {
    const std::uint64_t seed = seeds_.next();
    std::vector<float> values(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      values[i] = centre + random_value(seed, i, kVectorSpread);
    }
    return values;
  }
  Linear linear(std::uint64_t rows, bool bias) {
    Linear part{matrix(), {}};
    if (bias) part.bias = vector(rows, 0);
    return part;
  }

 private:
  SplitMix64 seeds_;
};

std::uint16_t bf16_of(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void draw(Matrix& matrix, std::uint64_t rows, std::uint64_t columns, LlamaWeights& weights) {
  auto& bytes = weights.moved.emplace_back(rows * columns * sizeof(std::uint16_t));
  for (std::uint64_t i = 0; i < rows * columns; ++i) {
    const std::uint16_t value = bf16_of(random_value(matrix.seed, i, matrix_spread(columns)));
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  matrix.data = bytes.data();
}

void describe_latent(Drawer& drawer, const ModelConfig& config, LlamaLayer& layer) {
  const LatentShape& shape = *config.latent;
  if (shape.q_rank != 0) {
    layer.latent.q_a = drawer.linear(shape.q_rank, false);
    layer.latent.q_a_norm = drawer.vector(shape.q_rank, 1);
  }
  layer.q = drawer.linear(std::uint64_t{config.heads} * (shape.nope_dim + shape.rope_dim), false);
  layer.latent.kv_a = drawer.linear(config.head_dim, false);
  layer.latent.kv_a_norm = drawer.vector(shape.kv_rank, 1);
  layer.latent.kv_b =
      drawer.linear(std::uint64_t{config.heads} * (shape.nope_dim + shape.v_dim), false);
  layer.o = drawer.linear(config.hidden_size, false);
}

void draw_latent(const ModelConfig& config, LlamaLayer& layer, LlamaWeights& weights) {
  const LatentShape& shape = *config.latent;
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t heads = config.heads;
  if (shape.q_rank != 0) draw(layer.latent.q_a.weight, shape.q_rank, hidden, weights);
  draw(layer.q.weight, heads * (shape.nope_dim + shape.rope_dim),
       shape.q_rank != 0 ? shape.q_rank : hidden, weights);
  draw(layer.latent.kv_a.weight, config.head_dim, hidden, weights);
  draw(layer.latent.kv_b.weight, heads * (shape.nope_dim + shape.v_dim), shape.kv_rank, weights);
  draw(layer.o.weight, hidden, heads * shape.v_dim, weights);
}

}  // namespace

Result<RandomShape> random_shape(const std::string& shape) {
  std::string known;
  for (const KnownShape& candidate : kShapes) {
    if (shape == candidate.name) {
      const auto json = parse_json(candidate.config, candidate.name);
      if (!json) return json.error();
      auto config = parse_model_config(*json, candidate.name);
      if (!config) return config.error();
      return RandomShape{shape, std::move(*config)};
    }
    known += std::string(candidate.name) + ", ";
  }
  std::filesystem::path path(shape);
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) path /= "config.json";
  if (!std::filesystem::is_regular_file(path, code)) {
    return make_error(Errc::not_found, "no shape '" + shape + "': give one of " + known +
                                           "a config.json or a directory that has one");
  }
  auto config = load_model_config(path);
  if (!config) return config.error();
  return RandomShape{std::filesystem::absolute(path, code).parent_path().filename().string(),
                     std::move(*config)};
}

LlamaWeights describe_random_weights(const ModelConfig& config, std::uint64_t seed) {
  Drawer drawer(seed);
  const std::uint64_t q_size = std::uint64_t{config.heads} * config.head_dim;
  const std::uint64_t kv_size = std::uint64_t{config.kv_heads} * config.head_dim;
  LlamaWeights weights;
  weights.embedding = drawer.matrix();
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    LlamaLayer& layer = weights.layers.emplace_back();
    layer.input_norm = drawer.vector(config.hidden_size, 1);
    if (config.latent) {
      describe_latent(drawer, config, layer);
    } else {
      layer.q = drawer.linear(q_size, config.qkv_bias);
      if (config.has_own_kv(i)) {
        layer.k = drawer.linear(kv_size, config.qkv_bias);
        layer.v = drawer.linear(kv_size, config.qkv_bias);
      }
      layer.o = drawer.linear(config.hidden_size, config.output_bias);
    }
    if (config.qk_norm) {
      layer.q_norm = drawer.vector(config.head_dim, 1);
      if (config.has_own_kv(i)) layer.k_norm = drawer.vector(config.head_dim, 1);
    }
    layer.post_attention_norm = drawer.vector(config.hidden_size, 1);
    layer.gate = drawer.linear(config.intermediate_size, config.mlp_bias);
    layer.up = drawer.linear(config.intermediate_size, config.mlp_bias);
    layer.down = drawer.linear(config.hidden_size, config.mlp_bias);
  }
  weights.norm = drawer.vector(config.hidden_size, 1);
  weights.head = config.tied_embeddings ? weights.embedding : drawer.matrix();
  return weights;
}

LlamaWeights make_random_weights(const ModelConfig& config, std::uint64_t seed) {
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t q_size = std::uint64_t{config.heads} * config.head_dim;
  const std::uint64_t kv_size = std::uint64_t{config.kv_heads} * config.head_dim;
  const std::uint64_t inner = config.intermediate_size;
  LlamaWeights weights = describe_random_weights(config, seed);
  draw(weights.embedding, config.vocab_size, hidden, weights);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    LlamaLayer& layer = weights.layers[i];
    if (config.latent) {
      draw_latent(config, layer, weights);
    } else {
      draw(layer.q.weight, q_size, hidden, weights);
      if (config.has_own_kv(i)) {
        draw(layer.k.weight, kv_size, hidden, weights);
        draw(layer.v.weight, kv_size, hidden, weights);
      }
      draw(layer.o.weight, hidden, q_size, weights);
    }
    draw(layer.gate.weight, inner, hidden, weights);
    draw(layer.up.weight, inner, hidden, weights);
    draw(layer.down.weight, hidden, inner, weights);
  }
  if (config.tied_embeddings) {
    weights.head = weights.embedding;
  } else {
    draw(weights.head, config.vocab_size, hidden, weights);
  }
  return weights;
}

}  // namespace kvtier::engine
