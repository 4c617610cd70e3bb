#include "engine_adapter/reference/template/syntax/literals.h"

#include <charconv>
#include <cstdint>

#include "engine_adapter/reference/template/value/meter.h"
#include "engine_adapter/reference/template/value/unicode.h"

namespace kvtier::jinja {
namespace {

// Digits of an escape; below 0 where there are not `count`.
std::int32_t digits_at(std::string_view text, std::size_t count, int base) {
  const std::string_view digits = text.substr(0, count);
  std::uint32_t number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  const bool fits = digits.size() == count && read.ec == std::errc{} &&
                    read.ptr == digits.data() + count && number <= 0x10FFFF;
  return fits ? static_cast<std::int32_t>(number) : -1;
}

void append_code(std::string& out, std::int32_t code, int line) {
  if (code < 0) throw Fault(line, "an escape in a string lacks digits");
  if (code >= 0xD800 && code < 0xE000) {
    throw Fault(line, "an escape in a string is half a character");
  }
  append_character(out, code);
}

// `rest` begins behind the backslash. Returns what was taken of it.
std::size_t append_escaped(std::string& out, std::string_view rest, int line) {
  constexpr std::string_view kNames = "ntr\\'\"abfv";
  constexpr std::string_view kMeanings = "\n\t\r\\'\"\a\b\f\v";
  const char c = rest[0];
  if (c == '\n') return 1;  // the line goes on
  if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
    out += kMeanings[known];
    return 1;
  }
  if (c == 'x' || c == 'u' || c == 'U') {
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    append_code(out, digits_at(rest.substr(1), digits, 16), line);
    return 1 + digits;
  }
  if (c >= '0' && c <= '7') {
    std::size_t digits = 1;
    while (digits < 3 && digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '7') {
      ++digits;
    }
    append_code(out, digits_at(rest, digits, 8), line);
    return digits;
  }
  if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
    throw Fault(line, "an escape in a string is not supported: \\N, or \\ before no ASCII");
  }
  out += '\\';  // of what has no meaning both stay
  out += c;
  return 1;
}

bool is_digit(char c, int base) noexcept {
  if (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) return true;
  return c >= '0' && c < '0' + std::min(base, 10);
}

// Digits with single '_' between them.
std::size_t take_digits(std::string_view rest, std::size_t at, int base, std::string& out) {
  while (at < rest.size()) {
    const bool between = rest[at] == '_' && at + 1 < rest.size() && is_digit(rest[at + 1], base);
    if (!between && !is_digit(rest[at], base)) break;
    if (!between) out += rest[at];
    ++at;
  }
  return at;
}

}  // namespace

std::string string_value(std::string_view written, int line) {
  std::string out;
  for (std::size_t at = 0; at < written.size();) {
    if (written[at] != '\\') {
      out += written[at++];
    } else {
      at += 1 + append_escaped(out, written.substr(at + 1), line);
    }
  }
  return out;
}

NumberLiteral number_at(std::string_view rest, int line) {
  NumberLiteral number{0, false, {}};
  const char kind = rest.size() > 2 && rest[0] == '0' ? static_cast<char>(rest[1] | 0x20) : '\0';
  const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
  number.size = take_digits(rest, base == 10 ? 0 : 2, base, number.value);
  const auto digit_at = [&](std::size_t at) { return at < rest.size() && is_digit(rest[at], 10); };
  if (base == 10 && number.size < rest.size() && rest[number.size] == '.' &&
      digit_at(number.size + 1)) {
    number.real = true;
    number.value += '.';
    number.size = take_digits(rest, number.size + 1, 10, number.value);
  }
  if (base == 10 && number.size < rest.size() && (rest[number.size] | 0x20) == 'e') {
    std::size_t at = number.size + 1;
    const bool sign = at < rest.size() && (rest[at] == '-' || rest[at] == '+');
    if (digit_at(at + (sign ? 1 : 0))) {
      number.real = true;
      number.value += 'e';
      if (sign) number.value += rest[at++];
      number.size = take_digits(rest, at, 10, number.value);
    }
  }
  if (number.real) return number;
  std::int64_t whole = 0;
  const char* const end = number.value.data() + number.value.size();
  const auto read = std::from_chars(number.value.data(), end, whole, base);
  if (read.ec != std::errc{} || read.ptr != end) {
    throw Fault(line, number.value + " is beyond 64 bits");
  }
  number.value = std::to_string(whole);
  return number;
}

}  // namespace kvtier::jinja
