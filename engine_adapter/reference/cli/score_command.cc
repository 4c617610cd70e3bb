#include "engine_adapter/reference/cli/command.h"
#include "engine_adapter/reference/model/score.h"

namespace kvtier::engine::cli {
namespace {

constexpr const char* kNote =
    "windows of the context do not overlap; the first token of each is not scored and its bytes "
    "are "
    "not counted";

struct ScoreOptions {
  ModelOptions model;
  std::string text_file;
  std::vector<std::string> formats;  // none: all that the device has
  std::uint32_t context = 0;         // 0: as many as the model takes
  std::string device = "cpu";
  std::uint32_t chunk_tokens = 0;
  std::uint64_t part_tokens = 0;
  bool json = false;
};

void add_options(CLI::App& command, ScoreOptions& o) {
  command
      .add_option("--model", o.model.directory,
                  "Directory with config.json, tokenizer.json and weights")
      ->required();
  command.add_option("--text-file", o.text_file, "The text to score, UTF-8")->required();
  command.add_option("--storage-format", o.formats, std::string(kStorageFormats) + "; repeatable")
      ->check(check_storage_format)
      ->default_str("all; f32, int8 and int4 on the CPU only");
  command.add_option("--context", o.context, "Tokens of a window; 0: max_position_embeddings")
      ->capture_default_str();
  command
      .add_option("--chunk-tokens", o.chunk_tokens,
                  "Tokens computed at once; 0: 512 on the CPU, 8192 on a GPU")
      ->check(CLI::Range(0U, 1U << 16))
      ->capture_default_str();
  add_device_option(command, o.device);
  add_window_options(command, o.model);
  command.add_option("--part-tokens", o.part_tokens,
                     "Tell the bits per byte of every so many tokens by itself, too");
  command.add_flag("--json", o.json, "Print JSON");
}

void print(const ScoreOptions& o, std::uint32_t context,
           const std::vector<std::pair<std::string, Score>>& scores) {
  const Score& any = scores.front().second;
  if (!o.json) {
    std::printf("%llu tokens, %llu bytes scored in %llu windows of %u tokens; %s\n",
                static_cast<unsigned long long>(any.tokens),
                static_cast<unsigned long long>(any.bytes),
                static_cast<unsigned long long>(any.windows), context, kNote);
    for (const auto& [format, score] : scores) {
      std::printf("%-9s %.5f bits per byte", format.c_str(), score.bits_per_byte());
      for (const double part : score.parts) std::printf(" %.5f", part);
      std::printf("\n");
    }
    return;
  }
  Json formats = Json::array();
  for (const auto& [format, score] : scores) {
    formats.push_back({{"format", format}, {"bits_per_byte", score.bits_per_byte()}});
    if (o.part_tokens != 0) formats.back()["parts"] = score.parts;
  }
  const Json report = {{"context", context},     {"tokens", any.tokens}, {"bytes", any.bytes},
                       {"windows", any.windows}, {"note", kNote},        {"formats", formats}};
  std::printf("%s\n", report.dump(2).c_str());
}

int score_text(const ScoreOptions& o) {
  const auto loaded = o.model.load();
  if (!loaded) return fail(loaded.error());
  const std::uint32_t context_max = (*loaded)->config.positions_max;
  const std::uint32_t context = o.context != 0 ? o.context : context_max;
  if (context < 2 || context > context_max) {
    std::fprintf(stderr, "kvtier-engine: --context must be 2 to %u\n", context_max);
    return kExitUsage;
  }
  const auto text = read_file(o.text_file);
  if (!text) return fail(text.error());
  const auto tokens = (*loaded)->tokenizer->encode(*text);
  if (!tokens) return fail(tokens.error());

  const Device device = parse_device(o.device).value();
  std::vector<std::string> formats = o.formats;
  if (formats.empty()) formats = {"fp8_e4m3", "fp8_e5m2", "bf16"};
  if (o.formats.empty() && !device.cuda) formats.insert(formats.end(), {"f32", "int8", "int4"});
  std::vector<std::pair<std::string, Score>> scores;
  for (const std::string& format : formats) {
    auto instance =
        Instance::make(**loaded, {.device = device,
                                  .format = parse_storage_format(format).value(),
                                  .pool_tokens = (*loaded)->config.endless ? 0 : context,
                                  .chunk_tokens = o.chunk_tokens});
    if (!instance) return fail(instance.error());
    const auto scored = score(*instance->model, *instance->pool, *(*loaded)->tokenizer, *tokens,
                              context, o.part_tokens);
    if (!scored) return fail(scored.error());
    scores.emplace_back(format, *scored);
  }
  print(o, context, scores);
  return kExitFine;
}

}  // namespace

void add_score_command(CLI::App& app, int& exit_code) {
  add_command(app, exit_code, "score", "Bits per byte of a text, by storage format of the KV",
              std::string("How it counts: ") + kNote + ".", add_options, score_text);
}

}  // namespace kvtier::engine::cli
