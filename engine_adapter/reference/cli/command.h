// What the commands of kvtier-engine share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/shown.h"
#include "engine_adapter/reference/model/instance.h"
#include "engine_adapter/reference/model/weights/capacity.h"
#include "engine_adapter/reference/model/weights/loaded_model.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"

namespace kvtier::engine::cli {

inline constexpr const char* kStorageFormats = "fp8_e4m3, fp8_e5m2, bf16, f32, int8 or int4";

inline constexpr int kExitFine = 0;
inline constexpr int kExitEnvironment = 1;
inline constexpr int kExitUsage = 2;

// Prints the error and returns the exit code.
inline int fail(const Error& error) {
  std::fprintf(stderr, "kvtier-engine: %s\n", shown(error.message).c_str());
  return kExitEnvironment;
}

// The same for what was asked for.
inline int misused(const Error& error) {
  fail(error);
  return kExitUsage;
}

// Refuses, as usage, what is not the name of a storage format of this engine.
inline std::string check_storage_format(const std::string& text) {
  const auto format = parse_engine_format(text);
  return format ? std::string{} : format.error().message;
}

// Refuses, as usage, what is not the name of a device.
inline std::string check_device(const std::string& text) {
  const auto device = parse_device(text);
  return device ? std::string{} : device.error().message;
}

// Where a model comes from: --model, or --random-weights and --weights-seed; and --context-max.
struct ModelOptions {
  std::string directory;
  std::string random_shape;
  std::uint64_t seed = 1;
  std::uint32_t context_max = 0;  // 0: as many as the model takes
  std::uint32_t sinks = 0;
  std::uint32_t window = 0;  // 0: none

  void add_to(CLI::App& command);
  Result<std::unique_ptr<LoadedModel>> load() const;
};
// Tells what a person should know of the model.
void say_notes(const LoadedModel& loaded);
void add_context_option(CLI::App& command, std::uint32_t& context_max);
// --sinks and --window.
void add_window_options(CLI::App& command, ModelOptions& options);
// As the options say. Errors: invalid.
Result<void> limit_context(const ModelOptions& options, ModelConfig& config);
// Refuses, as usage, what is not a way to propose tokens.
inline std::string check_speculation(const std::string& text) {
  const auto options = SpeculationOptions::parse(text);
  return options ? std::string{} : options.error().message;
}

// --device.
void add_device_option(CLI::App& command, std::string& device);
// --storage-format, of one format.
void add_storage_format_option(CLI::App& command, std::string& format);
// What proposes tokens: --speculate and --draft-model.
struct SpeculateOptions {
  std::string speculate;
  std::string draft_model;

  void add_to(CLI::App& command);
  // What does not fit together. Errors: invalid.
  Result<void> validate() const;
};
// A draft model with all it needs; none is asked for: nothing.
struct DraftModel {
  std::unique_ptr<LoadedModel> loaded;
  Instance instance;
  // `loaded` is the model that it proposes for, `like` how that one was made. Errors: those of
  // LoadedModel::load() and Instance::make(), invalid (their tokens are not the same).
  static Result<std::unique_ptr<DraftModel>> load(const SpeculateOptions& options,
                                                  const LoadedModel& loaded,
                                                  const InstanceOptions& like);
};
// As `options` say, with `draft`, which may be null.
SpeculationOptions speculation_of(const SpeculateOptions& options, const DraftModel* draft);

CLI::Option* add_pool_tokens_option(CLI::App& command, std::uint32_t& pool_tokens);

// Adds a command to `app`, which outlives this call: `add_options` gives it its options, and `run`
// its exit code, which `exit_code` is set to.
template <class Options>
void add_command(CLI::App& app, int& exit_code, const char* name, const char* what,
                 const std::string& footer, void (*add_options)(CLI::App&, Options&),
                 int (*run)(const Options&)) {
  const auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand(name, what);
  command->footer(footer);
  add_options(*command, *options);
  command->callback([options, run, &exit_code] { exit_code = run(*options); });
}

// Each adds a command to `app`, which outlives this call; `exit_code` is set when the command has
// run.
void add_generate_command(CLI::App& app, int& exit_code);
void add_plan_command(CLI::App& app, int& exit_code);
void add_score_command(CLI::App& app, int& exit_code);
void add_serve_command(CLI::App& app, int& exit_code);
void add_tokenize_command(CLI::App& app, int& exit_code);

}  // namespace kvtier::engine::cli
