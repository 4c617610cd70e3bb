// SentencePiece's visible space, U+2581: vocabularies write it for a space.
#pragma once

#include <string>
#include <string_view>

namespace kvtier::engine {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

inline std::string with_space_marks(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ') {
      out += kSpaceMark;
    } else {
      out += c;
    }
  }
  return out;
}

inline std::string without_space_marks(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const bool mark = text.starts_with(kSpaceMark);
    out += mark ? ' ' : text[0];
    text.remove_prefix(mark ? kSpaceMark.size() : 1);
  }
  return out;
}

}  // namespace kvtier::engine
