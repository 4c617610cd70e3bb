// What the commands of kvtier-engine share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine_adapter/engine/llama.h"
#include "engine_adapter/engine/loaded_model.h"
#include "engine_adapter/engine/page_pool.h"

namespace kvtier::engine::cli {

inline constexpr int kExitFine = 0;
inline constexpr int kExitEnvironment = 1;
inline constexpr int kExitUsage = 2;

// Prints the error and returns the exit code.
inline int fail(const Error& error) {
  std::fprintf(stderr, "kvtier-engine: %s\n", error.message.c_str());
  return kExitEnvironment;
}

// Refuses, as usage, what is not the name of a storage format.
inline std::string check_storage_format(const std::string& text) {
  const auto format = parse_storage_format(text);
  return format ? std::string{} : format.error().message;
}

// A model ready to compute with KV in one storage format.
struct Instance {
  Namespace ns;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<Llama> model;

  // `loaded` outlives it. Errors: invalid, no_space.
  static Result<Instance> make(const LoadedModel& loaded, StorageFormat format,
                               std::uint32_t pool_tokens, std::uint32_t chunk_tokens);
};

// Each adds a command to `app`, which outlives this call; `exit_code` is set when the command has
// run.
void add_generate_command(CLI::App& app, int& exit_code);
void add_score_command(CLI::App& app, int& exit_code);
void add_tokenize_command(CLI::App& app, int& exit_code);

}  // namespace kvtier::engine::cli
