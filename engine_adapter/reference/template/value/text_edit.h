// Texts made of texts. All count what they make before they make it, and throw Fault.
#pragma once

#include <string>
#include <string_view>

#include "engine_adapter/reference/template/value/value.h"

namespace kvtier::jinja {

// By white space where `by` is null; `most` below 0: everywhere.
Value split_text(Meter& meter, const std::string& text, const std::string* by, std::int64_t most,
                 bool from_right);
Value split_lines(Meter& meter, std::string_view text, bool keep_ends);
std::string replace_text(Meter& meter, const std::string& text, const std::string& from,
                         const std::string& to, std::int64_t most);
// With str() of each.
std::string join_texts(Meter& meter, const List& elements, const std::string& by);

enum class Side : unsigned char { left, right, both, after_sign };
std::string pad_text(Meter& meter, const std::string& text, std::int64_t width,
                     const std::string& fill, Side side);

std::size_t rfind_text(std::string_view text, std::string_view part) noexcept;

}  // namespace kvtier::jinja
