// What strings can do.
#include <algorithm>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"
#include "engine_adapter/reference/template/value/text_edit.h"
#include "engine_adapter/reference/template/value/unicode.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

struct Call {
  Meter& meter;
  const Value& self;
  const std::string& text;
  const std::string& name;
  const Arguments& arguments;

  Parameters take(std::initializer_list<std::string_view> names) const {
    return Parameters(meter, name, arguments, names);
  }
  Value made(std::string result) const {
    return make_text(meter, std::move(result), self.is_markup());
  }
};
using Method = Value (*)(const Call&);

Value strip(const Call& call) {
  const auto parameters = call.take({"/chars"});
  const std::string* set = parameters.text(0);
  call.meter.look(call.text.size());
  std::string_view left = call.text;
  if (call.name != "rstrip") left = strip_left(left, set);
  if (call.name != "lstrip") left = strip_right(left, set);
  return call.made(std::string(left));
}

template <Case kCase>
Value to_case(const Call& call) {
  call.take({});
  call.meter.look(8 * call.text.size());
  return call.made(change_case(call.text, kCase));
}

Value split(const Call& call) {
  const auto parameters = call.take({"sep", "maxsplit"});
  const bool from_right = call.name == "rsplit";
  return split_text(call.meter, call.text, parameters.text(0), parameters.whole(1, -1), from_right);
}

Value splitlines(const Call& call) {
  const auto parameters = call.take({"keepends"});
  return split_lines(call.meter, call.text, parameters.flag(0, false));
}

Value replace(const Call& call) {
  const auto parameters = call.take({"/old", "/new", "count"});
  return call.made(replace_text(call.meter, call.text, parameters.needed_text(0),
                                parameters.needed_text(1), parameters.whole(2, -1)));
}

// The part of the text that is between two positions, and where it begins.
std::string_view part_of(const Call& call, const Parameters& parameters, std::size_t first,
                         std::size_t& begin) {
  if (parameters.at(first) == nullptr && parameters.at(first + 1) == nullptr) return call.text;
  call.meter.look(call.text.size());
  const auto size = static_cast<std::int64_t>(count_characters(call.text));
  const auto settled = [size](std::int64_t at) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size));
  };
  begin = settled(parameters.whole(first, 0));
  const std::size_t end = settled(parameters.whole(first + 1, size));
  const std::size_t from = offset_of(call.text, begin);
  const std::size_t to = offset_of(call.text, end);
  return std::string_view(call.text).substr(from, to > from ? to - from : 0);
}

Value starts_or_ends(const Call& call) {
  const auto parameters = call.take({"/prefix", "/start", "/end"});
  std::size_t begin = 0;
  const std::string_view part = part_of(call, parameters, 1, begin);
  const auto fits = [&](const std::string& end) {
    return call.name == "startswith" ? part.starts_with(end) : part.ends_with(end);
  };
  const Sequence* several = parameters.needed(0).sequence();
  if (several == nullptr || several->kind != Sequence::Kind::tuple) {
    return Value::of(fits(parameters.needed_text(0)));
  }
  for (const Value& one : several->items) {
    if (one.text() == nullptr) call.meter.fail(call.name + " wants strings");
    if (fits(*one.text())) return Value::of(true);
  }
  return Value::of(false);
}

// What find, count and their like look for, and in which part of the text.
struct Search {
  explicit Search(const Call& call) {
    const auto parameters = call.take({"/sub", "/start", "/end"});
    part = part_of(call, parameters, 1, begin);
    sought = parameters.needed_text(0);
    call.meter.look(part.size());
  }

  std::size_t begin = 0;  // of the part, in characters
  std::string_view part;
  std::string_view sought;
};

Value find(const Call& call) {
  const Search search(call);
  const std::string_view part = search.part;
  const bool last = call.name.starts_with('r');
  const std::size_t at = last ? rfind_text(part, search.sought) : find_text(part, search.sought, 0);
  if (at != std::string_view::npos) {
    return Value::of(
        static_cast<std::int64_t>(search.begin + count_characters(part.substr(0, at))));
  }
  if (call.name.ends_with("index")) call.meter.fail("substring not found");
  return Value::of(std::int64_t{-1});
}

Value count(const Call& call) {
  const Search search(call);
  if (search.sought.empty()) {
    return Value::of(static_cast<std::int64_t>(count_characters(search.part)) + 1);
  }
  std::int64_t found = 0;
  for (std::size_t at = 0;
       (at = find_text(search.part, search.sought, at)) != std::string_view::npos;
       at += search.sought.size()) {
    ++found;
  }
  return Value::of(found);
}

Value join(const Call& call) {
  const auto parameters = call.take({"/iterable"});
  const List elements = elements_of(call.meter, parameters.needed(0));
  for (const Value& element : elements) {
    if (element.text() == nullptr) {
      call.meter.fail(std::string("join wants strings, not ") + element.type_name());
    }
  }
  return call.made(join_texts(call.meter, elements, call.text));
}

Value partition(const Call& call) {
  const auto parameters = call.take({"/sep"});
  const std::string& by = parameters.needed_text(0);
  if (by.empty()) call.meter.fail("an empty separator");
  call.meter.look(call.text.size());
  const bool last = call.name == "rpartition";
  const std::size_t at = last ? rfind_text(call.text, by) : find_text(call.text, by, 0);
  List parts;
  if (at == std::string::npos) {
    parts = {call.made(last ? "" : call.text), call.made(""), call.made(last ? call.text : "")};
  } else {
    parts = {call.made(call.text.substr(0, at)), call.made(by),
             call.made(call.text.substr(at + by.size()))};
  }
  return make_sequence(call.meter, std::move(parts), Sequence::Kind::tuple);
}

Value remove_end(const Call& call) {
  const auto parameters = call.take({"/part"});
  const std::string& part = parameters.needed_text(0);
  if (call.name == "removeprefix") {
    return call.made(call.text.starts_with(part) ? call.text.substr(part.size()) : call.text);
  }
  const bool there = call.text.ends_with(part);
  return call.made(there ? call.text.substr(0, call.text.size() - part.size()) : call.text);
}

Value pad(const Call& call) {
  const auto parameters = call.take({"/width", "/fillchar"});
  const std::int64_t width = parameters.whole(0, 0);
  const std::string* given = parameters.text(1);
  const std::string fill = given != nullptr ? *given : call.name == "zfill" ? "0" : " ";
  if (count_characters(fill) != 1) call.meter.fail(call.name + " wants one character");
  return call.made(pad_text(call.meter, call.text, width, fill,
                            call.name == "ljust"   ? Side::right
                            : call.name == "rjust" ? Side::left
                            : call.name == "zfill" ? Side::after_sign
                                                   : Side::both));
}

bool every(std::string_view text, bool (*holds)(std::int32_t)) {
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(character_at(rest).size)) {
    if (!holds(character_at(rest).code)) return false;
  }
  return !text.empty();
}

Value is_made_of(const Call& call) {
  call.take({});
  call.meter.look(8 * call.text.size());
  const std::string& name = call.name;
  if (name == "isalpha") return Value::of(every(call.text, [](auto c) { return is_letter(c); }));
  if (name == "isalnum") {
    return Value::of(every(call.text, [](auto c) { return is_letter(c) || is_digit(c); }));
  }
  if (name == "isspace") {
    return Value::of(!call.text.empty() && strip_left(call.text, nullptr).empty());
  }
  if (name == "isascii")
    return Value::of(std::ranges::all_of(call.text, [](char c) { return c >= 0; }));
  if (name == "isupper" || name == "islower") {
    const bool upper = name == "isupper";
    bool cased = false;
    for (std::string_view rest = call.text; !rest.empty();) {
      const Character c = character_at(rest);
      if (upper ? is_lower(c.code) : is_upper(c.code)) return Value::of(false);
      cased = cased || is_lower(c.code) || is_upper(c.code);
      rest.remove_prefix(c.size);
    }
    return Value::of(cased);
  }
  return Value::of(every(call.text, [](auto c) { return is_digit(c); }));
}

Value format(const Call& call) {
  Map named;
  for (const auto& [name, value] : call.arguments.named) named.set(name, value);
  return Value::of(brace_format(call.meter, call.text, call.arguments.plain, named));
}

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"strip", strip},
    {"lstrip", strip},
    {"rstrip", strip},
    {"lower", to_case<Case::lower>},
    {"casefold", to_case<Case::lower>},
    {"upper", to_case<Case::upper>},
    {"title", to_case<Case::title>},
    {"capitalize", to_case<Case::capital>},
    {"swapcase", to_case<Case::swap>},
    {"split", split},
    {"rsplit", split},
    {"splitlines", splitlines},
    {"replace", replace},
    {"startswith", starts_or_ends},
    {"endswith", starts_or_ends},
    {"find", find},
    {"rfind", find},
    {"index", find},
    {"rindex", find},
    {"count", count},
    {"join", join},
    {"partition", partition},
    {"rpartition", partition},
    {"removeprefix", remove_end},
    {"removesuffix", remove_end},
    {"ljust", pad},
    {"rjust", pad},
    {"center", pad},
    {"zfill", pad},
    {"isalpha", is_made_of},
    {"isalnum", is_made_of},
    {"isspace", is_made_of},
    {"isascii", is_made_of},
    {"isupper", is_made_of},
    {"islower", is_made_of},
    {"isdigit", is_made_of},
    {"isdecimal", is_made_of},
    {"isnumeric", is_made_of},
    {"format", format},
};

// They are attributes, too, but calling them is refused.
constexpr std::string_view kOthers[] = {"encode",  "expandtabs",  "format_map", "isidentifier",
                                        "istitle", "isprintable", "maketrans",  "translate"};

}  // namespace

bool is_text_method(std::string_view name) noexcept {
  return std::ranges::any_of(kMethods, [name](const auto& one) { return one.first == name; }) ||
         std::ranges::find(kOthers, name) != std::end(kOthers);
}

Value call_text_method(Meter& meter, const Value& self, const std::string& name,
                       const Arguments& arguments) {
  for (const auto& [known, method] : kMethods) {
    if (known == name) return method(Call{meter, self, *self.text(), name, arguments});
  }
  std::string supported;
  for (const auto& one : kMethods)
    supported += (supported.empty() ? "" : ", ") + std::string(one.first);
  meter.fail("the string method '" + name + "' is not supported; supported are " + supported);
}

}  // namespace kvtier::jinja
