// Text as Python sees it: characters, white space, letters and their case.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvtier::jinja {

// The character at the front, and its size in bytes; a byte that is no UTF-8 is one by itself.
struct Character {
  std::int32_t code;  // -1 where malformed
  std::size_t size;
};
Character character_at(std::string_view text) noexcept;

std::size_t count_characters(std::string_view text) noexcept;
// The byte at which character `index` begins; the size where there are fewer.
std::size_t offset_of(std::string_view text, std::size_t index) noexcept;
void append_character(std::string& out, std::int32_t code);

// Of the character at the front where str.strip() takes it, else 0.
std::size_t space_at(std::string_view text) noexcept;
std::string_view strip_left(std::string_view text, const std::string* set) noexcept;
std::string_view strip_right(std::string_view text, const std::string* set) noexcept;

enum class Case : unsigned char { lower, upper, title, swap, capital };
std::string change_case(std::string_view text, Case to);

bool is_letter(std::int32_t code) noexcept;
bool is_digit(std::int32_t code) noexcept;
bool is_lower(std::int32_t code) noexcept;
bool is_upper(std::int32_t code) noexcept;

// Where `part` is found from `from` on, or npos; in time that is linear in both.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) noexcept;

// As Python's repr() and json.dumps() write it.
void append_quoted(std::string& out, std::string_view text);
void append_json(std::string& out, std::string_view text, bool ascii);
std::string escape_html(std::string_view text);
// repr() of a float.
std::string float_text(double value);

}  // namespace kvtier::jinja
