// Filters that make texts.
#include <algorithm>
#include <cctype>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"
#include "engine_adapter/reference/template/value/text_edit.h"
#include "engine_adapter/reference/template/value/unicode.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

Value trim(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "trim", arguments, {"chars"});
  const std::string text = str_of(meter, value);
  const std::string* set = parameters.text(0);
  return make_text(meter, std::string(strip_left(strip_right(text, set), set)), value.is_markup());
}

template <Case kCase>
Value to_case(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "case", arguments, {});
  const std::string text = str_of(meter, value);
  meter.look(8 * text.size());
  return make_text(meter, change_case(text, kCase), value.is_markup());
}

// Of each word after white space, '-' or a bracket; unlike the method of strings.
Value title(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "title", arguments, {});
  const std::string text = str_of(meter, value);
  meter.look(8 * text.size());
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const auto is_between = [](std::string_view at) {
      return std::string_view("-({[<").find(at[0]) != std::string_view::npos || space_at(at) != 0;
    };
    std::size_t size = 0;
    while (size < rest.size() && !is_between(rest.substr(size))) {
      size += character_at(rest.substr(size)).size;
    }
    const std::size_t first = size == 0 ? 0 : character_at(rest).size;
    out += change_case(rest.substr(0, first), Case::upper);
    out += change_case(rest.substr(first, size - first), Case::lower);
    rest.remove_prefix(size);
    if (rest.empty()) break;
    const std::size_t between = character_at(rest).size;
    out += rest.substr(0, between);
    rest.remove_prefix(between);
  }
  return make_text(meter, std::move(out));
}

Value string(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "string", arguments, {});
  return value.text() != nullptr ? value : make_text(meter, str_of(meter, value));
}

Value safe(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "safe", arguments, {});
  return make_text(meter, str_of(meter, value), true);
}

Value escape(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "escape", arguments, {});
  if (value.is_markup()) return value;
  const std::string text = str_of(meter, value);
  meter.make(5 * text.size());
  return make_text(meter, escape_html(text), true);
}

Value replace(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "replace", arguments, {"old", "new", "count"});
  const std::string from = str_of(meter, parameters.needed(0));
  const std::string to = str_of(meter, parameters.needed(1));
  return make_text(meter,
                   replace_text(meter, str_of(meter, value), from, to, parameters.whole(2, -1)));
}

Value format(Meter& meter, const Value& value, const Arguments& arguments) {
  if (!arguments.plain.empty() && !arguments.named.empty()) {
    meter.fail("format takes plain arguments or named ones, not both");
  }
  Map named;
  for (const auto& [name, argument] : arguments.named) named.set(name, argument);
  return make_text(meter, percent_format(meter, str_of(meter, value), arguments.plain,
                                         arguments.named.empty() ? nullptr : &named));
}

// Every line but the first; empty ones only where `blank`.
Value indent(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "indent", arguments, {"width", "first", "blank"});
  const Value* width = parameters.at(0);
  std::string by;
  if (width != nullptr && width->text() != nullptr) {
    by = *width->text();
  } else {
    const std::int64_t spaces = parameters.whole(0, 4);
    if (spaces > 1000) meter.fail("indent: too wide");
    by.assign(static_cast<std::size_t>(std::max<std::int64_t>(spaces, 0)), ' ');
  }
  const bool blank = parameters.flag(2, false);
  const std::string text = str_of(meter, value) + "\n";
  const Value lines = split_lines(meter, text, false);
  std::string out;
  bool first = true;
  for (const Value& line : lines.sequence()->items) {
    meter.make(by.size() + line.text()->size() + 1);
    if (!first) out += '\n';
    if (first ? parameters.flag(1, false) : blank || !line.text()->empty()) out += by;
    out += *line.text();
    first = false;
  }
  return make_text(meter, std::move(out), value.is_markup());
}

Value center(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "center", arguments, {"width"});
  return make_text(meter,
                   pad_text(meter, str_of(meter, value), parameters.whole(0, 80), " ", Side::both));
}

Value wordcount(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "wordcount", arguments, {});
  const std::string text = str_of(meter, value);
  meter.look(8 * text.size());
  std::int64_t words = 0;
  bool inside = false;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(character_at(rest).size)) {
    const std::int32_t code = character_at(rest).code;
    const bool word = code == '_' || is_letter(code) || is_digit(code);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::of(words);
}

Value truncate(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "truncate", arguments,
                              {"length", "killwords", "end", "leeway"});
  const std::string text = str_of(meter, value);
  const std::string end = parameters.text(2) != nullptr ? *parameters.text(2) : "...";
  const std::int64_t most = parameters.whole(0, 255);
  const auto tail = static_cast<std::int64_t>(count_characters(end));
  if (most < tail) meter.fail("truncate: the length is below that of the end");
  if (static_cast<std::int64_t>(count_characters(text)) <= most + parameters.whole(3, 5)) {
    return make_text(meter, text);
  }
  std::string cut = text.substr(0, offset_of(text, static_cast<std::size_t>(most - tail)));
  if (!parameters.flag(1, false)) {
    const std::size_t space = cut.rfind(' ');
    if (space != std::string::npos) cut.resize(space);
  }
  return make_text(meter, cut + end);
}

// As RFC 3986 has it; '/' stays.
Value urlencode(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "urlencode", arguments, {});
  if (value.map() != nullptr || value.sequence() != nullptr) {
    meter.fail("urlencode is supported for strings only");
  }
  const std::string text = str_of(meter, value);
  meter.make(3 * text.size());
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
        std::string_view("_.-~/").find(c) != std::string_view::npos) {
      out += c;
    } else {
      constexpr char kDigits[] = "0123456789ABCDEF";
      out += '%';
      out += kDigits[static_cast<unsigned char>(c) >> 4U];
      out += kDigits[static_cast<unsigned char>(c) & 15U];
    }
  }
  return make_text(meter, std::move(out));
}

Value join(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "join", arguments, {"d", "attribute"});
  const Value* by = parameters.at(0);
  List elements = elements_of(meter, value);
  if (const Value* path = parameters.at(1); path != nullptr && !path->is_none()) {
    for (Value& element : elements) element = path_of(meter, element, *path);
  }
  return make_text(meter,
                   join_texts(meter, elements, by != nullptr ? str_of(meter, *by) : std::string{}));
}

// json.dumps() with ensure_ascii off, as chat templates are rendered.
Value tojson(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "tojson", arguments,
                              {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  const std::int64_t indent = parameters.whole(1, -1);
  const bool lines = parameters.at(1) != nullptr && !parameters.at(1)->is_none();
  if (indent > 64) meter.fail("tojson: indent must be at most 64");
  style.indent = lines ? static_cast<int>(std::max<std::int64_t>(indent, 0)) : -1;
  style.between = lines ? "," : ", ";
  style.ascii = parameters.flag(0, false);
  style.sorted = parameters.flag(3, false);
  if (const Value* separators = parameters.at(2); separators != nullptr && !separators->is_none()) {
    const Sequence* pair = separators->sequence();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      meter.fail("tojson: separators must be two strings");
    }
    style.between = *pair->items[0].text();
    style.after_key = *pair->items[1].text();
  }
  return make_text(meter, json_of(meter, value, style));
}

constexpr std::pair<std::string_view, Filter> kTextFilters[] = {
    {"trim", trim},
    {"lower", to_case<Case::lower>},
    {"upper", to_case<Case::upper>},
    {"capitalize", to_case<Case::capital>},
    {"title", title},
    {"string", string},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
    {"replace", replace},
    {"format", format},
    {"indent", indent},
    {"center", center},
    {"wordcount", wordcount},
    {"truncate", truncate},
    {"urlencode", urlencode},
    {"join", join},
    {"tojson", tojson},
};

}  // namespace

Filter find_text_filter(std::string_view name) noexcept {
  for (const auto& [known, filter] : kTextFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

}  // namespace kvtier::jinja
