#include <sstream>

#include "engine_adapter/reference/cli/command.h"

namespace kvtier::engine::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text_file;
  bool json = false;
  bool lines = false;
};

Result<std::vector<Token>> tokens_of_line(const Tokenizer& tokenizer, const std::string& line,
                                          const std::string& where) {
  const auto text = parse_json(line, where);
  if (!text) return text.error();
  if (!text->is_string()) return make_error(Errc::malformed, where + ": not a JSON text");
  auto tokens = tokenizer.encode(text->get_ref<const std::string&>());
  if (!tokens) return make_error(tokens.error().code, where + ": " + tokens.error().message);
  return tokens;
}

int tokenize_lines(const Tokenizer& tokenizer, const std::string& text, const std::string& file) {
  std::istringstream lines(text);
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    const auto tokens = tokens_of_line(tokenizer, line, file + ":" + std::to_string(number));
    if (!tokens) return fail(tokens.error());
    std::printf("%s\n", Json(*tokens).dump().c_str());
  }
  return kExitFine;
}

int tokenize_text(const TokenizeOptions& o) {
  const auto tokenizer = Tokenizer::load_model(o.model);
  if (!tokenizer) return fail(tokenizer.error());
  const auto text = read_file(o.text_file);
  if (!text) return fail(text.error());
  if (o.lines) return tokenize_lines(*tokenizer, *text, o.text_file);
  const auto tokens = tokenizer->encode(*text);
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
                  "Directory with tokenizer.json or tokenizer.model; nothing else is read")
      ->required();
  command.add_option("--text-file", options->text_file, "The text, UTF-8")->required();
  command.add_flag("--json", options->json, "Print JSON");
  command.add_flag("--lines", options->lines,
                   "Each line of the file is a JSON text of its own; print a JSON list for each");
  command.callback([options, &exit_code] { exit_code = tokenize_text(*options); });
}

}  // namespace kvtier::engine::cli
