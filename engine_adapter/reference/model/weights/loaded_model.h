// A model: a directory's config.json, tokenizer.json and weights, or random weights of a shape; and
// the name under which its KV is kept.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/safetensors.h"
#include "engine_adapter/reference/model/weights/llama_weights.h"
#include "engine_adapter/reference/model/weights/model_config.h"
#include "engine_adapter/reference/tokenizer/tokenizer.h"
#include "kvtier/namespace.h"

namespace kvtier::engine {

// What K and V are computed with. Blocks are shared only among engines that compute alike: an FP32
// engine answers with the same bits on a hit as on a miss, which it could not with blocks of
// another arithmetic in its prefix.
enum class Arithmetic : std::uint8_t { f32, bf16 };

struct LoadedModel {
  ModelConfig config;
  std::optional<Tokenizer> tokenizer;  // none with random weights
  SafeTensors tensors;
  LlamaWeights weights;
  std::optional<std::uint64_t> random_seed;  // the matrices are only described
  // "name@digest": the directory's name, and the digest of the weights and of config.json as they
  // were read and are computed with, since either changes what K and V are.
  std::string revision;
  // What a person should know who starts with this model, a line each.
  std::vector<std::string> notes;

  // Errors: whatever is wrong with a file, naming it; invalid, where they do not fit one another.
  static Result<std::unique_ptr<LoadedModel>> load(const std::filesystem::path& folder);
  // Errors: those of random_shape().
  static Result<std::unique_ptr<LoadedModel>> random(const std::string& shape, std::uint64_t seed);

  // Gives the weights' memory back, for whoever has them elsewhere: on a GPU. No CPU model that was
  // made of them may be left.
  void let_go_of_weights();

  // Errors: invalid (the model is beyond kNamespaceLimits).
  Result<Namespace> ns(StorageFormat format, Arithmetic arithmetic = Arithmetic::f32) const;
};

}  // namespace kvtier::engine
