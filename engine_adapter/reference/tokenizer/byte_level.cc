#include "engine_adapter/reference/tokenizer/byte_level.h"

#include <array>

#include "engine_adapter/reference/tokenizer/utf8.h"

namespace kvtier::engine {
namespace {

constexpr unsigned kCharactersMax = 256 + 68;

bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Character to byte, -1 for none: printable bytes are themselves, the others follow from U+0100 on.
std::array<int, kCharactersMax> make_alphabet() {
  std::array<int, kCharactersMax> bytes;
  bytes.fill(-1);
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes[stands_for_itself(byte) ? byte : next++] = static_cast<int>(byte);
  }
  return bytes;
}

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view text) {
  static const auto alphabet = make_alphabet();
  std::string bytes;
  while (!text.empty()) {
    const Utf8Unit unit = first_unit(text);
    if (unit.kind != Utf8Unit::Kind::scalar || unit.bytes > 2) return {};
    const auto lead = static_cast<unsigned char>(text[0]);
    const unsigned character =
        unit.bytes == 1 ? lead
                        : (lead & 0x1FU) << 6 | (static_cast<unsigned char>(text[1]) & 0x3FU);
    if (character >= kCharactersMax || alphabet[character] < 0) return {};
    bytes.push_back(static_cast<char>(alphabet[character]));
    text.remove_prefix(unit.bytes);
  }
  return bytes;
}

}  // namespace kvtier::engine
