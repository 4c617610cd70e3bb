#include "core/base/shown.h"

#include <cstdint>

namespace kvtier {
namespace {

// The length of the UTF-8 character at the start of `text`, 0 if it is none or a control character.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3FU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  // What turns the writing direction round could make one name look like another.
  const bool invisible = (code >= 0x80 && code < 0xA0) || (code >= 0x200B && code <= 0x200F) ||
                         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) ||
                         code == 0xFEFF;
  return code < kLeast[length] || code > 0x10FFFF || surrogate || invisible ? 0 : length;
}

constexpr std::size_t kEscapeBytes = 4;

void append_escape(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xF]};
}

}  // namespace

std::string shown(std::string_view text, std::size_t bytes_max) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character(text);
    if (out.size() + (length == 0 ? kEscapeBytes : length) > bytes_max) return out + "...";
    if (length == 0) {
      append_escape(out, static_cast<unsigned char>(text.front()));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace kvtier
