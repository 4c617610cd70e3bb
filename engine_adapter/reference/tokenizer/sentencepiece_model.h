// A tokenizer.model file: SentencePiece's own format, with pieces found by BPE or by a unigram
// model. Immutable; any thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "engine_adapter/reference/tokenizer/added_tokens.h"
#include "kvtier/result.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace kvtier::engine {

class SentencePieceModel {
 public:
  // Errors: not_found, io, malformed, naming the file.
  static Result<SentencePieceModel> load(const std::filesystem::path& file);

  // Appends the ids of `text`, valid UTF-8; at a text's start with the space that the model puts
  // there. Errors: invalid.
  Result<void> encode(std::string_view text, bool at_start, std::vector<Token>& out) const;

  // Every token with the bytes it stands for.
  std::vector<std::pair<Token, std::string>> tokens() const;
  // <s>, </s> and their kind, which the library itself never finds in a text.
  std::vector<AddedToken> control_tokens() const;
  std::optional<Token> bos() const;
  bool adds_leading_space() const noexcept { return adds_leading_space_; }

 private:
  using Processor = sentencepiece::SentencePieceProcessor;

  SentencePieceModel() = default;

  std::shared_ptr<const Processor> start_;   // as the file has it
  std::shared_ptr<const Processor> middle_;  // without the space before the first word
  bool adds_leading_space_ = false;
};

}  // namespace kvtier::engine
