#include "engine_adapter/reference/template/value/unicode.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace kvtier::jinja {
namespace {

utf8proc_category_t category_of(std::int32_t code) noexcept {
  return code < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(code);
}

// What str.isprintable() says.
bool is_printable(std::int32_t code) noexcept {
  if (code < 0x7F) return code >= 0x20;
  switch (category_of(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

constexpr std::int32_t kSharpS = 0xDF;

// One character in another case. Those that become several are left, but the sharp s.
void append_case(std::string& out, std::int32_t code, Case to) {
  if (code == kSharpS && to != Case::lower) {
    out += to == Case::upper ? "SS" : "Ss";
  } else {
    append_character(out, to == Case::lower   ? utf8proc_tolower(code)
                          : to == Case::upper ? utf8proc_toupper(code)
                                              : utf8proc_totitle(code));
  }
}

std::size_t taken(std::string_view text, const std::string* set) noexcept {
  if (set == nullptr) return space_at(text);
  const std::size_t size = character_at(text).size;
  for (std::string_view rest = *set; !rest.empty(); rest.remove_prefix(character_at(rest).size)) {
    if (rest.substr(0, character_at(rest).size) == text.substr(0, size)) return size;
  }
  return 0;
}

void append_escape(std::string& out, const char* format, std::int32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(code));
  out += text;
}

}  // namespace

Character character_at(std::string_view text) noexcept {
  utf8proc_int32_t code = -1;
  const auto size =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size(), 4)), &code);
  return size > 0 ? Character{code, static_cast<std::size_t>(size)} : Character{-1, 1};
}

std::size_t count_characters(std::string_view text) noexcept {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80 ? 1 : 0;
  return count;
}

std::size_t offset_of(std::string_view text, std::size_t index) noexcept {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) continue;
    if (index-- == 0) return at;
  }
  return text.size();
}

void append_character(std::string& out, std::int32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(code, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

std::size_t space_at(std::string_view text) noexcept {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return (first >= 0x09 && first <= 0x0D) || (first >= 0x1C && first <= 0x20);
  const Character c = character_at(text);
  if (c.code == 0x85) return c.size;
  const auto category = category_of(c.code);
  const bool space = category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
                     category == UTF8PROC_CATEGORY_ZP;
  return space ? c.size : 0;
}

std::string_view strip_left(std::string_view text, const std::string* set) noexcept {
  while (!text.empty()) {
    const std::size_t size = taken(text, set);
    if (size == 0) break;
    text.remove_prefix(size);
  }
  return text;
}

std::string_view strip_right(std::string_view text, const std::string* set) noexcept {
  while (!text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) --at;
    if (taken(text.substr(at), set) != text.size() - at) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::string change_case(std::string_view text, Case to) {
  std::string out;
  out.reserve(text.size());
  bool inside = false;  // of a word, or past the first character
  while (!text.empty()) {
    const Character c = character_at(text);
    Case now = to;
    if (to == Case::title || to == Case::capital) now = inside ? Case::lower : Case::title;
    if (to == Case::swap) now = is_upper(c.code) ? Case::lower : Case::upper;
    if (c.code < 0) {
      out += text[0];
    } else {
      append_case(out, c.code, now);
    }
    inside = to == Case::capital || is_lower(c.code) || is_upper(c.code) ||
             category_of(c.code) == UTF8PROC_CATEGORY_LT;
    text.remove_prefix(c.size);
  }
  return out;
}

bool is_letter(std::int32_t code) noexcept {
  const auto category = category_of(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_digit(std::int32_t code) noexcept {
  return category_of(code) == UTF8PROC_CATEGORY_ND;
}
bool is_lower(std::int32_t code) noexcept {
  return code >= 0 && (category_of(code) == UTF8PROC_CATEGORY_LL || utf8proc_islower(code) != 0);
}
bool is_upper(std::int32_t code) noexcept {
  return code >= 0 && (category_of(code) == UTF8PROC_CATEGORY_LU || utf8proc_isupper(code) != 0);
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) noexcept {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

void append_quoted(std::string& out, std::string_view text) {
  const bool single =
      text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  out += quote;
  while (!text.empty()) {
    const Character c = character_at(text);
    if (text[0] == quote || text[0] == '\\') {
      out += '\\';
      out += text[0];
    } else if (text[0] == '\n' || text[0] == '\t' || text[0] == '\r') {
      out += text[0] == '\n' ? "\\n" : text[0] == '\t' ? "\\t" : "\\r";
    } else if (c.code < 0 || is_printable(c.code)) {
      out.append(text.substr(0, c.size));
    } else {
      append_escape(out,
                    c.code < 0x100     ? "\\x%02x"
                    : c.code < 0x10000 ? "\\u%04x"
                                       : "\\U%08x",
                    c.code);
    }
    text.remove_prefix(c.size);
  }
  out += quote;
}

void append_json(std::string& out, std::string_view text, bool ascii) {
  constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
  constexpr std::string_view kNames = "\"\\nrtfb";
  out += '"';
  while (!text.empty()) {
    const Character c = character_at(text);
    const std::size_t named = kNamed.find(text[0]);
    if (named != std::string_view::npos) {
      out += '\\';
      out += kNames[named];
    } else if (c.code < 0) {
      out += ascii ? "\\ufffd" : "\xEF\xBF\xBD";
    } else if (c.code >= 0x20 && (!ascii || c.code < 0x80)) {
      out.append(text.substr(0, c.size));
    } else if (c.code < 0x10000) {
      append_escape(out, "\\u%04x", c.code);
    } else {
      append_escape(out, "\\u%04x", 0xD800 + ((c.code - 0x10000) >> 10));
      append_escape(out, "\\u%04x", 0xDC00 + ((c.code - 0x10000) & 0x3FF));
    }
    text.remove_prefix(c.size);
  }
  out += '"';
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// The fewest digits that are read as the same number, with an exponent from 1e16 and below 1e-4.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace kvtier::jinja
