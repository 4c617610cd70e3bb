// A model's directory, loaded: config.json, tokenizer.json and the weights, and the name under
// which its KV is kept.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "engine_adapter/engine/llama_weights.h"
#include "engine_adapter/engine/model_config.h"
#include "engine_adapter/engine/safetensors.h"
#include "engine_adapter/engine/tokenizer.h"
#include "kvtier/namespace.h"

namespace kvtier::engine {

inline constexpr std::uint32_t kBlockTokens = 16;

struct LoadedModel {
  ModelConfig config;
  Tokenizer tokenizer;
  SafeTensors tensors;
  LlamaWeights weights;
  // "name@digest": the directory's name, and the digest of the weights and of config.json, since
  // either changes what K and V are.
  std::string revision;

  // Errors: whatever is wrong with a file, naming it; invalid, where they do not fit one another.
  static Result<std::unique_ptr<LoadedModel>> load(const std::filesystem::path& folder);

  // Errors: invalid (the model is beyond kNamespaceLimits).
  Result<Namespace> ns(StorageFormat format) const;
};

}  // namespace kvtier::engine
