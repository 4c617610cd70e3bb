#include "engine_adapter/reference/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <cstdlib>

#include "engine_adapter/reference/files/file_kind.h"
#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/tokenizer/space_mark.h"

namespace kvtier::engine {
namespace {

// ModelProto { normalizer_spec { add_dummy_prefix: false } }: what is read after a message
// overrides what the message says.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

Token as_token(int id) noexcept {
  return static_cast<Token>(id);
}

}  // namespace

Result<SentencePieceModel> SentencePieceModel::load(const std::filesystem::path& file) {
  const auto bytes = read_file(file);
  if (!bytes) return bytes.error();
  if (const auto other = kind_of(std::as_bytes(std::span(*bytes)))) {
    return make_error(Errc::malformed, file.string() + ": is " + *other);
  }
  const auto processor_of =
      [&file](const std::string& proto) -> Result<std::shared_ptr<Processor>> {
    auto processor = std::make_shared<Processor>();
    const auto status = processor->LoadFromSerializedProto(proto);
    if (status.ok()) return processor;
    return make_error(Errc::malformed, file.string() + ": not a SentencePiece model: " +
                                           std::string(status.message()));
  };
  const auto start = processor_of(*bytes);
  if (!start) return start.error();
  const auto middle = processor_of(*bytes + std::string(kNoDummyPrefix));
  if (!middle) return middle.error();
  if (as_token((*start)->GetPieceSize()) > kTokenIdsMax) {
    return make_error(Errc::malformed, file.string() + ": has more than 2^24 pieces");
  }
  SentencePieceModel model;
  model.start_ = *start;
  model.middle_ = *middle;
  model.adds_leading_space_ = (*start)->EncodeAsIds("a") != (*middle)->EncodeAsIds("a");
  return model;
}

Result<void> SentencePieceModel::encode(std::string_view text, bool at_start,
                                        std::vector<Token>& out) const {
  std::vector<int> ids;
  const auto status = (at_start ? start_ : middle_)->Encode({text.data(), text.size()}, &ids);
  if (!status.ok())
    return make_error(Errc::invalid, "SentencePiece: " + std::string(status.message()));
  for (const int id : ids) out.push_back(as_token(id));
  return {};
}

std::vector<std::pair<Token, std::string>> SentencePieceModel::tokens() const {
  std::vector<std::pair<Token, std::string>> found;
  for (int id = 0; id < start_->GetPieceSize(); ++id) {
    std::string text = start_->IdToPiece(id);
    if (start_->IsByte(id)) {
      // "<0xE4>"
      text = std::string(1, static_cast<char>(std::strtoul(text.c_str() + 3, nullptr, 16)));
    } else if (!start_->IsControl(id)) {
      text = without_space_marks(text);
    }
    found.emplace_back(as_token(id), std::move(text));
  }
  return found;
}

std::vector<AddedToken> SentencePieceModel::control_tokens() const {
  std::vector<AddedToken> found;
  for (int id = 0; id < start_->GetPieceSize(); ++id) {
    if (!start_->IsControl(id)) continue;
    AddedToken token;
    token.id = as_token(id);
    token.content = start_->IdToPiece(id);
    token.special = true;
    if (!token.content.empty()) found.push_back(std::move(token));
  }
  return found;
}

std::optional<Token> SentencePieceModel::bos() const {
  const int id = start_->bos_id();
  if (id < 0) return {};
  return as_token(id);
}

}  // namespace kvtier::engine
