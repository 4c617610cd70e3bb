#include "engine_adapter/reference/tokenizer/utf8.h"

namespace kvtier::engine {
namespace {

using Kind = Utf8Unit::Kind;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Range {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

// Length of the character that `lead` begins (0: none does) and the range of its second byte, which
// excludes overlong forms, surrogates and what is beyond U+10FFFF.
std::size_t shape_of(unsigned char lead, Range& second) noexcept {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return 2;
  if (lead == 0xE0) second.low = 0xA0;
  if (lead == 0xED) second.high = 0x9F;
  if (lead == 0xF0) second.low = 0x90;
  if (lead == 0xF4) second.high = 0x8F;
  return lead < 0xF0 ? 3 : 4;
}

}  // namespace

Utf8Unit first_unit(std::string_view text) noexcept {
  Range range;
  const std::size_t length = shape_of(static_cast<unsigned char>(text[0]), range);
  if (length == 0) return {Kind::invalid, 1};
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::incomplete, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < range.low || byte > range.high) return {Kind::invalid, i};
    range = {};
  }
  return {Kind::scalar, length};
}

std::size_t valid_utf8_prefix(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = first_unit(text.substr(at));
    if (unit.kind != Kind::scalar) break;
    at += unit.bytes;
  }
  return at;
}

Character first_character(std::string_view text) noexcept {
  const auto byte = [text](std::size_t i) {
    return std::uint32_t{static_cast<unsigned char>(text[i])};
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  std::uint32_t code = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3FU);
  return {code, length};
}

Character last_character(std::string_view text) noexcept {
  std::size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) --at;
  return first_character(text.substr(at));
}

bool is_white_space(std::uint32_t code) noexcept {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = first_unit(rest);
    if (unit.kind == Kind::incomplete) break;
    out += unit.kind == Kind::scalar ? rest.substr(0, unit.bytes) : kReplacement;
    rest.remove_prefix(unit.bytes);
  }
  pending_ = std::string(rest);
  return out;
}

std::string Utf8Stream::finish() {
  const std::string out(pending_.empty() ? std::string_view{} : kReplacement);
  pending_.clear();
  return out;
}

}  // namespace kvtier::engine
