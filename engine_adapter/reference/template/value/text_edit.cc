#include "engine_adapter/reference/template/value/text_edit.h"

#include <algorithm>

#include "engine_adapter/reference/template/value/unicode.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

class Parts {
 public:
  explicit Parts(Meter& meter) : meter_(meter) {}
  void add(std::string_view part) {
    meter_.step();
    meter_.make(sizeof(Value));
    parts_.push_back(make_text(meter_, std::string(part)));
  }
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(parts_.size()); }
  Value take(bool backwards) {
    if (backwards) std::ranges::reverse(parts_);
    return make_sequence(meter_, std::move(parts_));
  }

 private:
  Meter& meter_;
  List parts_;
};

std::size_t space_before(std::string_view text) noexcept {
  return text.size() - strip_right(text, nullptr).size();
}

Value split_words(Meter& meter, std::string_view rest, std::int64_t most, bool from_right) {
  Parts parts(meter);
  meter.look(8 * rest.size());
  rest = from_right ? strip_right(rest, nullptr) : strip_left(rest, nullptr);
  while (!rest.empty() && (most < 0 || parts.size() < most)) {
    std::size_t size = 0;  // of a word
    if (from_right) {
      std::size_t at = rest.size();
      while (at > 0) {
        std::size_t before = at - 1;
        while (before > 0 && (static_cast<unsigned char>(rest[before]) & 0xC0U) == 0x80) --before;
        if (space_at(rest.substr(before)) != 0) break;
        at = before;
      }
      size = rest.size() - at;
      parts.add(rest.substr(at));
      rest.remove_suffix(size);
      rest.remove_suffix(space_before(rest));
    } else {
      while (size < rest.size() && space_at(rest.substr(size)) == 0) {
        size += character_at(rest.substr(size)).size;
      }
      parts.add(rest.substr(0, size));
      rest = strip_left(rest.substr(size), nullptr);
    }
  }
  // What is left keeps the white space at its far end.
  if (!rest.empty()) parts.add(rest);
  return parts.take(from_right);
}

// Whether a line ends here, and with how many bytes.
std::size_t line_end_at(std::string_view text) noexcept {
  if (text.starts_with("\r\n")) return 2;
  const auto c = static_cast<unsigned char>(text[0]);
  if ((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E)) return 1;
  if (text.starts_with("\xC2\x85")) return 2;
  return text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9") ? 3 : 0;
}

}  // namespace

// Both turned round, for std::string_view::rfind can take the product of the sizes.
std::size_t rfind_text(std::string_view text, std::string_view part) noexcept {
  if (part.size() > text.size()) return std::string_view::npos;
  const std::string reversed_text(text.rbegin(), text.rend());
  const std::string reversed_part(part.rbegin(), part.rend());
  const std::size_t at = find_text(reversed_text, reversed_part, 0);
  return at == std::string_view::npos ? at : text.size() - part.size() - at;
}

Value split_text(Meter& meter, const std::string& text, const std::string* by, std::int64_t most,
                 bool from_right) {
  if (by == nullptr) return split_words(meter, text, most, from_right);
  if (by->empty()) meter.fail("split by an empty string");
  meter.look(text.size());
  Parts parts(meter);
  std::string_view rest = text;
  while (most < 0 || parts.size() < most) {
    const std::size_t at =
        from_right && most >= 0 ? rfind_text(rest, *by) : find_text(rest, *by, 0);
    if (at == std::string_view::npos) break;
    if (from_right && most >= 0) {
      meter.look(rest.size());
      parts.add(rest.substr(at + by->size()));
      rest = rest.substr(0, at);
    } else {
      parts.add(rest.substr(0, at));
      rest.remove_prefix(at + by->size());
    }
  }
  parts.add(rest);
  return parts.take(from_right && most >= 0);
}

Value split_lines(Meter& meter, std::string_view text, bool keep_ends) {
  meter.look(8 * text.size());
  Parts parts(meter);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = line_end_at(text.substr(at));
    if (end == 0) {
      ++at;
      continue;
    }
    parts.add(text.substr(begin, at - begin + (keep_ends ? end : 0)));
    at += end;
    begin = at;
  }
  if (begin < text.size()) parts.add(text.substr(begin));
  return parts.take(false);
}

std::string replace_text(Meter& meter, const std::string& text, const std::string& from,
                         const std::string& to, std::int64_t most) {
  meter.look(text.size());
  std::string out;
  const auto append = [&](std::string_view part) {
    meter.make(part.size());
    out += part;
  };
  std::size_t at = 0;
  for (std::int64_t done = 0; most < 0 || done < most; ++done) {
    if (from.empty()) {  // before every character, and at the end
      append(to);
      meter.step();
      if (at >= text.size()) break;
      const std::size_t size = character_at(std::string_view(text).substr(at)).size;
      append(std::string_view(text).substr(at, size));
      at += size;
      continue;
    }
    const std::size_t found = find_text(text, from, at);
    if (found == std::string::npos) break;
    append(std::string_view(text).substr(at, found - at));
    append(to);
    at = found + from.size();
  }
  append(std::string_view(text).substr(at));
  return out;
}

std::string join_texts(Meter& meter, const List& elements, const std::string& by) {
  std::string out;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    meter.step();
    meter.make(by.size());
    if (i != 0) out += by;
    out += str_of(meter, elements[i]);
  }
  return out;
}

std::string pad_text(Meter& meter, const std::string& text, std::int64_t width,
                     const std::string& fill, Side side) {
  const std::size_t size = count_characters(text);
  if (width <= 0 || static_cast<std::size_t>(width) <= size) return text;
  const std::size_t missing = static_cast<std::size_t>(width) - size;
  if (missing > (1U << 30U)) meter.fail("a text is too wide");
  meter.make(missing * fill.size());
  std::size_t left = 0;
  if (side == Side::left || side == Side::after_sign) left = missing;
  // As Python does: where the halves differ, the left one is larger for an odd width.
  if (side == Side::both) {
    left = missing / 2 + (missing & static_cast<std::size_t>(width) & 1U);
  }
  std::string before;
  std::string after;
  for (std::size_t i = 0; i < left; ++i) before += fill;
  for (std::size_t i = left; i < missing; ++i) after += fill;
  if (side == Side::after_sign && (text.starts_with('-') || text.starts_with('+'))) {
    return text.substr(0, 1) + before + text.substr(1);
  }
  return before + text + after;
}

}  // namespace kvtier::jinja
