#include "engine_adapter/engine/cli/command.h"

namespace kvtier::engine::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text_file;
  bool json = false;
};

int tokenize_text(const TokenizeOptions& o) {
  const auto loaded = LoadedModel::load(o.model);
  if (!loaded) return fail(loaded.error());
  const auto text = read_file(o.text_file);
  if (!text) return fail(text.error());
  const auto tokens = (*loaded)->tokenizer->encode(*text);
  if (!tokens) return fail(tokens.error());
  if (o.json) {
    std::printf("%s\n", Json({{"tokens", tokens->size()}, {"ids", *tokens}}).dump().c_str());
    return kExitFine;
  }
  for (const Token token : *tokens) std::printf("%u\n", token);
  return kExitFine;
}

}  // namespace

void add_tokenize_command(CLI::App& app, int& exit_code) {
  CLI::App& command = *app.add_subcommand("tokenize", "Print the token ids of a text");
  const auto options = std::make_shared<TokenizeOptions>();
  command
      .add_option("--model", options->model,
                  "Directory with config.json, tokenizer.json and weights")
      ->required();
  command.add_option("--text-file", options->text_file, "The text, UTF-8")->required();
  command.add_flag("--json", options->json, "Print JSON");
  command.callback([options, &exit_code] { exit_code = tokenize_text(*options); });
}

}  // namespace kvtier::engine::cli
