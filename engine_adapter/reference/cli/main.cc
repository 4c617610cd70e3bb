#include <exception>

#include "engine_adapter/reference/cli/command.h"
#include "kernels/table.h"

namespace kvtier::engine::cli {

void ModelOptions::add_to(CLI::App& command) {
  auto* from = command.add_option_group("model")->require_option(1);
  from->add_option("--model", directory, "Directory with config.json, tokenizer.json and weights");
  from->add_option("--random-weights", random_shape,
                   "Weights drawn from a seed for a shape: llama-3.1-8b, llama-3.1-70b, "
                   "llama-3.2-1b, qwen2.5-7b, qwen3-8b, tiny, tiny-mla, or a config.json");
  command.add_option("--weights-seed", seed, "Of --random-weights")->capture_default_str();
  add_context_option(command, context_max);
  add_window_options(command, *this);
}

Result<void> limit_context(const ModelOptions& options, ModelConfig& config) {
  if (options.window != 0) {
    return config.attend_within(options.sinks, options.window, options.context_max);
  }
  if (options.sinks != 0) {
    return make_error(Errc::invalid, "--sinks needs a --window: without one all tokens are seen");
  }
  if (options.context_max != 0) config.limit_positions(options.context_max);
  return {};
}

void add_window_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--sinks", options.sinks,
                     "Beside the window every token attends to so many first ones; 4 are usual");
  command.add_option("--window", options.window,
                     "Every token attends to so many last ones, and contexts go beyond what the "
                     "model was trained for; 0: to all");
}

Result<std::unique_ptr<LoadedModel>> ModelOptions::load() const {
  auto loaded =
      random_shape.empty() ? LoadedModel::load(directory) : LoadedModel::random(random_shape, seed);
  if (!loaded) return loaded;
  if (const auto limited = limit_context(*this, (*loaded)->config); !limited) {
    return limited.error();
  }
  say_notes(**loaded);
  return loaded;
}

void say_notes(const LoadedModel& loaded) {
  for (const std::string& note : loaded.notes) {
    std::fprintf(stderr, "kvtier-engine: %s\n", note.c_str());
  }
}

void add_context_option(CLI::App& command, std::uint32_t& context_max) {
  command
      .add_option("--context-max", context_max,
                  "Tokens of prompt and answer together, at most; 0: max_position_embeddings, or "
                  "1048576 with a --window")
      ->capture_default_str();
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "Where to compute: cpu, cuda or cuda:N")
      ->check(check_device)
      ->capture_default_str();
}

void add_storage_format_option(CLI::App& command, std::string& format) {
  command
      .add_option("--storage-format", format,
                  std::string(kStorageFormats) + "; the last three on the CPU only")
      ->check(check_storage_format)
      ->capture_default_str();
}

CLI::Option* add_pool_tokens_option(CLI::App& command, std::uint32_t& pool_tokens) {
  return command
      .add_option("--pool-tokens", pool_tokens,
                  "Tokens the engine's own pages hold; 0: max_position_embeddings")
      ->capture_default_str();
}

namespace {

constexpr const char* kExamples = R"(
Examples:
  Answer a prompt, keeping and reusing KV through the daemon:
    kvtier-engine generate --model engine_adapter/models/docs-4m \
        --socket /run/kvtier/kvtierd.sock --prompt-file manual.txt --max-tokens 64
  The same prompt twice in one process, as JSON, waiting until the cache has it on disk:
    kvtier-engine generate --model DIR --prompt-file manual.txt --max-tokens 16 \
        --repeat 2 --json --flush
  Without a cache, sampled with a seed:
    kvtier-engine generate --model DIR --no-cache --prompt "To mount a disk," \
        --max-tokens 40 --temperature 0.8 --top-p 0.95 --seed 7
  On a GPU, a model of a known shape with random weights and a prompt of random tokens:
    kvtier-engine generate --device cuda --random-weights llama-3.1-8b \
        --prompt-length 32768 --max-tokens 16 --repeat 2
  What each storage format costs in quality:
    kvtier-engine score --model DIR --text-file heldout.txt --context 2048
  The OpenAI API on port 8000 of this machine, with what the daemon keeps:
    kvtier-engine serve --model DIR --port 8000
  How many contexts of 32,768 tokens fit in the running daemon's tiers:
    kvtier-engine plan --model DIR --context 32768 --socket /run/kvtier/kvtierd.sock

Exit status: 0 fine, 1 a file, the model or the daemon failed, 2 wrong usage.
)";

int run(int argc, char** argv) {
  CLI::App app("A small inference engine that keeps its KV in kvtier.", "kvtier-engine");
  app.require_subcommand(1);
  app.footer(kExamples);
  app.set_version_flag("--version", "kvtier-engine " KVTIER_VERSION);
  unsigned threads = 0;
  app.add_option("--threads", threads, "Threads to compute with; 0: one a processor")
      ->check(CLI::Range(0U, 256U));
  app.parse_complete_callback([&threads] { kernels::set_cpu_threads(threads); });
  int exit_code = kExitFine;
  add_generate_command(app, exit_code);
  add_plan_command(app, exit_code);
  add_score_command(app, exit_code);
  add_serve_command(app, exit_code);
  add_tokenize_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitFine : kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace kvtier::engine::cli

int main(int argc, char** argv) {
  try {
    return kvtier::engine::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvtier-engine: %s\n", error.what());
    return kvtier::engine::cli::kExitEnvironment;
  }
}
