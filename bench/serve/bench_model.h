// A model as a benchmark's command line names it, ready to compute.
#pragma once

#include <memory>
#include <string>

#include "bench/support/records.h"
#include "engine_adapter/reference/model/instance.h"

namespace kvtier::bench {

struct BenchModel {
  // A directory or, where `shape` is not empty, random weights of it; the rest as kvtier-engine has
  // it. Throws std::runtime_error.
  BenchModel(const std::string& directory, const std::string& shape, const std::string& device_name,
             std::uint32_t pool_tokens, std::uint32_t chunk_tokens, bool batch_invariant = false)
      : loaded(need(shape.empty() ? engine::LoadedModel::load(directory)
                                  : engine::LoadedModel::random(shape, 1))),
        device(need(engine::parse_device(device_name))),
        instance(need(engine::Instance::make(*loaded, {.device = device,
                                                       .pool_tokens = pool_tokens,
                                                       .chunk_tokens = chunk_tokens,
                                                       .batch_invariant = batch_invariant}))) {}

  std::unique_ptr<engine::LoadedModel> loaded;
  engine::Device device;
  engine::Instance instance;
};

}  // namespace kvtier::bench
