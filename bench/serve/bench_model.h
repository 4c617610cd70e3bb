// A model as a benchmark's command line names it, ready to compute.
#pragma once

#include <memory>
#include <string>

#include "bench/support/records.h"
#include "engine_adapter/reference/model/instance.h"

namespace kvtier::bench {

struct BenchModel {
  // A directory or, where `shape` is not empty, random weights of it; `device_name` as
  // kvtier-engine has it, in place of the one in `options`. Throws std::runtime_error.
  BenchModel(const std::string& directory, const std::string& shape, const std::string& device_name,
             engine::InstanceOptions options)
      : loaded(need(shape.empty() ? engine::LoadedModel::load(directory)
                                  : engine::LoadedModel::random(shape, 1))),
        device(need(engine::parse_device(device_name))),
        instance(need(engine::Instance::make(*loaded, on(device, options)))) {}

  std::unique_ptr<engine::LoadedModel> loaded;
  engine::Device device;
  engine::Instance instance;

 private:
  static engine::InstanceOptions on(const engine::Device& device, engine::InstanceOptions options) {
    options.device = device;
    return options;
  }
};

}  // namespace kvtier::bench
