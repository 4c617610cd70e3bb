// What a run would send and what the cache would take, without a server.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/model/weights/model_config.h"
#include "engine_adapter/reference/tokenizer/tokenizer.h"
#include "engine_adapter/warm/documents.h"
#include "kvtier/namespace.h"

namespace kvtier::warm {

// The model's tokenizer and shape; its weights are not read.
struct Measure {
  engine::ModelConfig config;
  engine::Tokenizer tokenizer;
  StorageFormat format;
  // Errors: whatever is wrong with config.json or the tokenizer.
  static Result<Measure> load(const std::string& directory, StorageFormat format);
};

struct DryRun {
  std::size_t documents = 0;
  std::size_t left_out = 0;           // in a directory and no text
  std::vector<std::string> failures;  // cannot be read, or longer than the model takes
  std::uint64_t text_bytes = 0;
  std::uint64_t tokens = 0;    // with a measure only
  std::uint64_t kv_bytes = 0;  // of whole blocks; what documents have in common counts each time
};

// Says each document through `say`. Errors: those of plan_capacity().
Result<DryRun> dry_run(const std::vector<Document>& documents,
                       const std::optional<Measure>& measure,
                       const std::function<void(const std::string&)>& say);

}  // namespace kvtier::warm
