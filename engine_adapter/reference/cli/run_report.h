// What kvtier-engine says about one answered prompt.
#pragma once

#include <cstdint>
#include <string>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/scheduler/generator.h"

namespace kvtier::engine::cli {

struct RunReport {
  std::size_t prompt_tokens = 0;
  GenerateResult result;
  std::string answer;      // valid UTF-8
  bool connected = false;  // to a daemon, at the end of the run
};

Json to_json(const RunReport& report);
// One line for people.
std::string summarise(const RunReport& report);

}  // namespace kvtier::engine::cli
