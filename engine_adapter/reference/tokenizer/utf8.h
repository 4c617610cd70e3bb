// UTF-8 as it must be treated where bytes come from outside: checked, or repaired with U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvtier::engine {

struct Utf8Unit {
  enum class Kind : unsigned char { scalar, invalid, incomplete } kind;
  std::size_t bytes;  // of `text`, at least 1
};

// What `text`, not empty, begins with. An invalid unit is the longest piece that U+FFFD stands for,
// as the Unicode standard recommends; an incomplete one would need bytes after the end of `text`.
Utf8Unit first_unit(std::string_view text) noexcept;

// The offset of the first byte that is not part of valid UTF-8; text.size() where all is.
std::size_t valid_utf8_prefix(std::string_view text) noexcept;

// The character that valid UTF-8 begins or ends with.
struct Character {
  std::uint32_t code;
  std::size_t bytes;
};
Character first_character(std::string_view text) noexcept;
Character last_character(std::string_view text) noexcept;
// Unicode's White_Space.
bool is_white_space(std::uint32_t code) noexcept;

// Turns pieces of bytes, cut anywhere, into pieces of valid UTF-8.
class Utf8Stream {
 public:
  // What can be said for certain so far.
  std::string push(std::string_view bytes);
  // U+FFFD where a character was left unfinished.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace kvtier::engine
