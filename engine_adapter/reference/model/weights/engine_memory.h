// What an engine's GPUs hold: weights, activations, and KV in what is left. Arithmetic over shapes,
// for planning; nothing is loaded.
#pragma once

#include <cstdint>

#include "engine_adapter/reference/model/weights/capacity.h"

namespace kvtier::engine {

struct EngineHost {
  std::uint32_t gpus = 1;            // one model over all of them (tensor parallel)
  std::uint64_t gpu_bytes = 0;       // of each
  double utilization = 0.9;          // the part of it that the engine may take
  std::uint32_t step_tokens = 8192;  // rows of a step
  std::uint32_t answers = 256;       // of those, with logits
  std::uint32_t weight_bits = 16;    // of each weight as it is held
};

// Users whose requests begin with the same tokens (a system prompt, tools).
struct SharedUsers {
  std::uint32_t users = 0;
  std::uint32_t shared_tokens = 0;  // of each request's context; whole blocks of it are held once
};

struct EngineMemory {
  std::uint64_t parameters = 0;
  // Of each GPU. Weights and activations are cut into as many parts as there are GPUs; KV heads
  // too, and where there are fewer heads than GPUs, some have the same ones.
  std::uint64_t weight_bytes = 0, activation_bytes = 0;
  std::uint64_t kv_bytes = 0;       // left for KV; 0 where the engine does not fit
  std::uint64_t missing_bytes = 0;  // for weights and activations
  // Of KV in one format.
  std::uint64_t token_bytes = 0;      // a GPU
  std::uint64_t mha_token_bytes = 0;  // if each query head had a KV head of its own
  std::uint64_t tokens = 0;           // that fit
  std::uint64_t requests = 0;         // of the plan's context, with nothing in common
  // Tokens that the users' KV takes, where what they share is held once, and where it is not.
  std::uint64_t users_tokens = 0, users_tokens_apart = 0;
};

// Weights of the model: matrices, biases and norms.
std::uint64_t parameters_of(const ModelConfig& config) noexcept;
// Of a step of so many rows on one GPU, as the CUDA backend keeps them, with logits of `answers`.
std::uint64_t activation_bytes_of(const ModelConfig& config, const EngineHost& host) noexcept;

// `format` and `context_tokens` are a capacity plan's of the same model.
EngineMemory plan_engine_memory(const ModelConfig& config, const FormatPlan& format,
                                std::uint32_t context_tokens, const EngineHost& host,
                                const SharedUsers& users) noexcept;

}  // namespace kvtier::engine
