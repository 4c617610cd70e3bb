// The alphabet of byte-level BPE: each byte is written as one printable character, so that
// vocabularies are text (GPT-2's bytes_to_unicode).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvtier::engine {

// The bytes that `text` writes; nothing if a character is not of the alphabet.
std::optional<std::string> bytes_from_alphabet(std::string_view text);

}  // namespace kvtier::engine
