// Weights drawn from a seed instead of read from a checkpoint, so that a model of any shape can be
// run and measured. Matrices are BF16, uniform with a variance of 1 / columns, and the same on
// every backend; a GPU draws them in place.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "engine_adapter/reference/model/weights/llama_weights.h"
#include "engine_adapter/reference/model/weights/random_value.h"

namespace kvtier::engine {

struct RandomShape {
  std::string name;
  ModelConfig config;
};

// `shape` names a known shape ("llama-3.1-8b", ...), a config.json or a directory that has one.
// Errors: not_found, naming the known shapes; those of a config.json.
Result<RandomShape> random_shape(const std::string& shape);

// What the values of a random matrix lie between: variance 1 / columns.
inline float matrix_spread(std::uint64_t columns) {
  return std::sqrt(3.0F / static_cast<float>(columns));
}

// Vectors are drawn, matrices only described (Matrix::seed).
LlamaWeights describe_random_weights(const ModelConfig& config, std::uint64_t seed);
// The same with the matrices drawn into host memory.
LlamaWeights make_random_weights(const ModelConfig& config, std::uint64_t seed);

}  // namespace kvtier::engine
