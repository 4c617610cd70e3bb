// A model with random weights on a GPU and prompts for it.
#pragma once

#include <memory>
#include <vector>

#include "bench/gpu/gpu_engine.h"
#include "bench/support/records.h"
#include "engine_adapter/reference/model/instance.h"
#include "engine_adapter/reference/scheduler/generator.h"

namespace kvtier::bench {

struct EngineSetup {
  // Room for two prompts of the longest kind.
  explicit EngineSetup(const GpuEngineOptions& options)
      : loaded(need(engine::LoadedModel::random(options.shape, 1))),
        instance(need(
            engine::Instance::make(*loaded, {.device = {.cuda = 0},
                                             .format = need(parse_storage_format(options.format)),
                                             .pool_tokens = 2 * options.prompt_tokens + 4096,
                                             .chunk_tokens = options.chunk_tokens}))) {}

  engine::Model& model() { return *instance.model; }
  engine::PagePool& pool() { return *instance.pool; }
  std::vector<Token> prompt(std::uint32_t tokens, std::uint64_t seed) const {
    engine::SplitMix64 random(seed);
    std::vector<Token> made(tokens);
    for (Token& token : made) token = static_cast<Token>(random.next() % loaded->config.vocab_size);
    return made;
  }

  std::unique_ptr<engine::LoadedModel> loaded;
  engine::Instance instance;
};

}  // namespace kvtier::bench
