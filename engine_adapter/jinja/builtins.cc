#include "engine_adapter/jinja/builtins.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "engine_adapter/jinja/fault.h"

namespace kvtier::jinja {
namespace {

// What Python's str.strip() takes: of ASCII and Latin 1, and Unicode's spaces.
std::size_t space_at(std::string_view text) noexcept {
  const auto c = static_cast<unsigned char>(text[0]);
  if ((c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20)) return 1;
  if (text.starts_with("\xC2\x85") || text.starts_with("\xC2\xA0")) return 2;
  if (text.size() < 3) return 0;
  const std::string_view three = text.substr(0, 3);
  if (three == "\xE1\x9A\x80" || three == "\xE2\x80\xA8" || three == "\xE2\x80\xA9" ||
      three == "\xE2\x80\xAF" || three == "\xE2\x81\x9F" || three == "\xE3\x80\x80") {
    return 3;
  }
  return three >= "\xE2\x80\x80" && three <= "\xE2\x80\x8A" ? 3 : 0;
}

class Stripped {
 public:
  explicit Stripped(const std::string* set) {
    if (set != nullptr) set_ = characters_of(*set);
    by_set_ = set != nullptr;
  }
  std::string left(std::string_view text) const {
    while (!text.empty()) {
      const std::size_t size = taken(text);
      if (size == 0) break;
      text.remove_prefix(size);
    }
    return std::string(text);
  }
  std::string right(std::string_view text) const {
    while (!text.empty()) {
      std::size_t at = text.size() - 1;
      while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) --at;
      if (taken(text.substr(at)) != text.size() - at) break;
      text.remove_suffix(text.size() - at);
    }
    return std::string(text);
  }

 private:
  std::size_t taken(std::string_view text) const noexcept {
    if (!by_set_) return space_at(text);
    for (const std::string& character : set_) {
      if (text.starts_with(character)) return character.size();
    }
    return 0;
  }
  std::vector<std::string> set_;
  bool by_set_ = false;
};

// Letters beyond ASCII stay as they are.
std::string cased(std::string text, int (*change)(int)) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(change(c));
  }
  return text;
}
std::string capitalised(std::string text) {
  text = cased(std::move(text), std::tolower);
  if (!text.empty()) text[0] = cased(text.substr(0, 1), std::toupper)[0];
  return text;
}
std::string titled(std::string text) {
  bool inside = false;
  for (char& c : text) {
    const bool letter = static_cast<unsigned char>(c) >= 0x80 || std::isalpha(c) != 0;
    if (static_cast<unsigned char>(c) < 0x80) {
      c = static_cast<char>(inside ? std::tolower(c) : std::toupper(c));
    }
    inside = letter;
  }
  return text;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to,
                     int line) {
  if (from.empty()) throw Fault(line, "replace of an empty string is not supported");
  std::string out;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(from, at)) != std::string::npos;
       at = found + from.size()) {
    out.append(text, at, found - at).append(to);
  }
  return out.append(text, at);
}

Value split(const std::string& text, const std::string* by, std::int64_t most, int line) {
  List parts;
  if (by != nullptr) {
    if (by->empty()) throw Fault(line, "split by an empty string");
    std::size_t at = 0;
    for (std::size_t found; most != 0 && (found = text.find(*by, at)) != std::string::npos;
         --most) {
      parts.push_back(Value::of(text.substr(at, found - at)));
      at = found + by->size();
    }
    parts.push_back(Value::of(text.substr(at)));
    return Value::of(std::move(parts));
  }
  if (most >= 0) throw Fault(line, "split by white space with a bound is not supported");
  std::string word;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t space = space_at(rest);
    if (space == 0) {
      word += rest[0];
    } else if (!word.empty()) {
      parts.push_back(Value::of(std::exchange(word, {})));
    }
    rest.remove_prefix(space == 0 ? 1 : space);
  }
  if (!word.empty()) parts.push_back(Value::of(std::move(word)));
  return Value::of(std::move(parts));
}

[[noreturn]] void refuse(int line, const std::string& what, const std::string& name,
                         const char* supported) {
  throw Fault(line, what + " '" + name + "' is not supported; supported are " + supported);
}

// Checks and hands out the arguments of one call.
class Taker {
 public:
  Taker(const Arguments& arguments, const std::string& name, int line, std::size_t most)
      : arguments_(arguments), name_(name), line_(line) {
    if (arguments.plain.size() > most) {
      throw Fault(line, "'" + name + "' is not supported with so many arguments");
    }
  }
  const Value* at(std::size_t i, const char* key) {
    if (i < arguments_.plain.size()) return &arguments_.plain[i];
    for (const auto& [name, value] : arguments_.named) {
      if (name != key) continue;
      ++named_taken_;
      return &value;
    }
    return nullptr;
  }
  const std::string* text(std::size_t i, const char* key) {
    const Value* value = at(i, key);
    if (value == nullptr || value->is_none()) return nullptr;
    if (value->text() == nullptr) {
      throw Fault(line_, "'" + name_ + "' wants a string, not " + value->type_name());
    }
    return value->text();
  }
  const std::string& needed_text(std::size_t i, const char* key) {
    const std::string* found = text(i, key);
    if (found == nullptr) throw Fault(line_, "'" + name_ + "' lacks an argument");
    return *found;
  }
  std::int64_t whole(std::size_t i, const char* key, std::int64_t otherwise) {
    const Value* value = at(i, key);
    if (value == nullptr || value->is_none()) return otherwise;
    const auto* number = value->get_if<std::int64_t>();
    if (number == nullptr) {
      throw Fault(line_, "'" + name_ + "' wants a whole number, not " + value->type_name());
    }
    return *number;
  }
  void check_named() const {
    if (named_taken_ != arguments_.named.size()) {
      throw Fault(line_, "'" + name_ + "' is not supported with the arguments given by name");
    }
  }

 private:
  const Arguments& arguments_;
  const std::string& name_;
  int line_;
  std::size_t named_taken_ = 0;
};

// The elements that a loop over `value` has.
List elements_of(const Value& value, int line) {
  if (const List* list = value.list()) return *list;
  List found;
  if (const Map* map = value.map()) {
    for (const auto& entry : map->entries()) found.push_back(Value::of(entry.first));
  } else if (const std::string* text = value.text()) {
    for (std::string& character : characters_of(*text))
      found.push_back(Value::of(std::move(character)));
  } else if (!value.is_undefined()) {
    throw Fault(line, std::string(value.type_name()) + " has no elements");
  }
  return found;
}

Value items_of(const Map& map) {
  List items;
  for (const auto& [key, value] : map.entries()) {
    items.push_back(Value::of(List{Value::of(key), value}));
  }
  return Value::of(std::move(items));
}

std::size_t length_of(const Value& value, int line) {
  if (const std::string* text = value.text()) return characters_of(*text).size();
  if (const Map* map = value.map()) return map->entries().size();
  if (const List* list = value.list()) return list->size();
  if (value.is_undefined()) return 0;
  throw Fault(line, std::string(value.type_name()) + " has no length");
}

Value to_json(const Value& value, Taker& taker, int line) {
  std::string out;
  // The width counts; that non-ASCII stays as it is is how chat templates are rendered anyway.
  const auto indent = taker.whole(0, "indent", -1);
  taker.at(1, "ensure_ascii");
  if (indent > 16) throw Fault(line, "tojson: indent must be at most 16");
  if (!write_json(value, static_cast<int>(indent), out)) {
    throw Fault(line, std::string("tojson: ") + value.type_name() + " has no JSON form");
  }
  return Value::of(std::move(out));
}

Value joined(const Value& value, Taker& taker, int line) {
  const std::string* by = taker.text(0, "d");
  std::string out;
  bool first = true;
  for (const Value& element : elements_of(value, line)) {
    if (!first && by != nullptr) out += *by;
    first = false;
    out += element.str();
  }
  return Value::of(std::move(out));
}

Value default_of(const Value& value, Taker& taker) {
  const Value* otherwise = taker.at(0, "default_value");
  const Value* also_false = taker.at(1, "boolean");
  const bool replaced_too = also_false != nullptr && also_false->truthy() && !value.truthy();
  if (!value.is_undefined() && !replaced_too) return value;
  return otherwise != nullptr ? *otherwise : Value::of(std::string{});
}

Value whole_of(const Value& value) {
  if (value.is_number()) return Value::of(static_cast<std::int64_t>(std::trunc(value.number())));
  if (const std::string* text = value.text()) {
    char* end = nullptr;
    const std::int64_t number = std::strtoll(text->c_str(), &end, 10);
    if (!text->empty() && *end == '\0') return Value::of(number);
  }
  return Value::of(std::int64_t{0});
}

// The filters that make a string of a string.
bool text_filter(const std::string& name, const Value& value, Taker& taker, int line,
                 std::string& out) {
  const std::string text = value.str();
  if (name == "trim") {
    const Stripped stripped(taker.text(0, "chars"));
    out = stripped.right(stripped.left(text));
  } else if (name == "lower") {
    out = cased(text, std::tolower);
  } else if (name == "upper") {
    out = cased(text, std::toupper);
  } else if (name == "capitalize") {
    out = capitalised(text);
  } else if (name == "title") {
    out = titled(text);
  } else if (name == "string" || name == "safe") {
    out = text;
  } else if (name == "replace") {
    const std::string& from = taker.needed_text(0, "old");
    out = replaced(text, from, taker.needed_text(1, "new"), line);
  } else {
    return false;
  }
  return true;
}

std::int64_t count_of(const std::string& text, const std::string& part, int line) {
  if (part.empty()) throw Fault(line, "count of an empty string is not supported");
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) {
    ++count;
  }
  return count;
}

Value text_method(const std::string& text, const std::string& name, Taker& taker, int line) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Stripped stripped(taker.text(0, "chars"));
    const std::string left = name == "rstrip" ? text : stripped.left(text);
    return Value::of(name == "lstrip" ? left : stripped.right(left));
  }
  if (name == "split") {
    const std::string* by = taker.text(0, "sep");
    return split(text, by, taker.whole(1, "maxsplit", -1), line);
  }
  if (name == "startswith") return Value::of(text.starts_with(taker.needed_text(0, "")));
  if (name == "endswith") return Value::of(text.ends_with(taker.needed_text(0, "")));
  if (name == "replace") {
    const std::string& from = taker.needed_text(0, "");
    return Value::of(replaced(text, from, taker.needed_text(1, ""), line));
  }
  if (name == "lower") return Value::of(cased(text, std::tolower));
  if (name == "upper") return Value::of(cased(text, std::toupper));
  if (name == "title") return Value::of(titled(text));
  if (name == "capitalize") return Value::of(capitalised(text));
  if (name == "count") return Value::of(count_of(text, taker.needed_text(0, ""), line));
  if (name == "find") {
    const std::size_t at = text.find(taker.needed_text(0, ""));
    if (at == std::string::npos) return Value::of(std::int64_t{-1});
    return Value::of(static_cast<std::int64_t>(characters_of(text.substr(0, at)).size()));
  }
  refuse(line, "the string method", name,
         "strip, lstrip, rstrip, split, startswith, endswith, replace, lower, upper, title, "
         "capitalize, count and find");
}

}  // namespace

std::vector<std::string> characters_of(const std::string& text) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    std::size_t size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    size = std::min(size, text.size() - at);
    found.push_back(text.substr(at, size));
    at += size;
  }
  return found;
}

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments,
                   int line) {
  Taker taker(arguments, name, line, 2);
  Value out;
  std::string text;
  if (text_filter(name, value, taker, line, text)) {
    out = Value::of(std::move(text));
  } else if (name == "tojson") {
    out = to_json(value, taker, line);
  } else if (name == "length" || name == "count") {
    out = Value::of(static_cast<std::int64_t>(length_of(value, line)));
  } else if (name == "default" || name == "d") {
    out = default_of(value, taker);
  } else if (name == "join") {
    out = joined(value, taker, line);
  } else if (name == "int") {
    out = whole_of(value);
  } else if (name == "list") {
    out = Value::of(elements_of(value, line));
  } else if (name == "items") {
    if (!value.is_undefined() && value.map() == nullptr) {
      throw Fault(line, std::string("items: ") + value.type_name() + " is no mapping");
    }
    out = value.is_undefined() ? Value::of(List{}) : items_of(*value.map());
  } else if (name == "first" || name == "last" || name == "reverse") {
    List elements = elements_of(value, line);
    if (name == "reverse") {
      std::reverse(elements.begin(), elements.end());
      out = Value::of(std::move(elements));
    } else if (!elements.empty()) {
      out = name == "first" ? elements.front() : elements.back();
    }
  } else {
    refuse(line, "the filter", name,
           "trim, tojson, length, count, default, d, join, int, list, items, first, last, reverse, "
           "lower, upper, capitalize, title, string, safe and replace");
  }
  taker.check_named();
  return out;
}

bool apply_test(const std::string& name, const Value& value, const std::vector<Value>& arguments,
                int line) {
  const auto argument = [&]() -> const Value& {
    if (arguments.size() != 1) throw Fault(line, "the test '" + name + "' wants one argument");
    return arguments[0];
  };
  if (name == "equalto" || name == "eq" || name == "==") return value == argument();
  if (name == "ne") return !(value == argument());
  if (name == "in") return contains(argument(), value, line);
  if (name == "divisibleby" || name == "odd" || name == "even") {
    const auto* number = value.get_if<std::int64_t>();
    const auto* by = name == "divisibleby" ? argument().get_if<std::int64_t>() : nullptr;
    if (number == nullptr || (name == "divisibleby" && (by == nullptr || *by == 0))) {
      throw Fault(line, "the test '" + name + "' wants whole numbers");
    }
    if (by != nullptr) return *by == -1 || *number % *by == 0;
    return (*number % 2 != 0) == (name == "odd");
  }
  if (!arguments.empty()) throw Fault(line, "the test '" + name + "' wants no argument");
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.map() != nullptr;
  if (name == "boolean") return value.get_if<bool>() != nullptr;
  if (name == "true") return value.get_if<bool>() != nullptr && value.truthy();
  if (name == "false") return value.get_if<bool>() != nullptr && !value.truthy();
  if (name == "integer") return value.get_if<std::int64_t>() != nullptr;
  if (name == "float") return value.get_if<double>() != nullptr;
  if (name == "number") return value.is_number();
  if (name == "iterable" || name == "sequence") {
    // An undefined value is iterable, as nothing.
    return value.text() != nullptr || value.list() != nullptr || value.map() != nullptr ||
           value.is_undefined();
  }
  refuse(line, "the test", name,
         "defined, undefined, none, string, mapping, boolean, true, false, integer, float, number, "
         "iterable, sequence, equalto, eq, ne, in, divisibleby, odd and even");
}

Value call_method(const Value& object, const std::string& name, const Arguments& arguments,
                  int line) {
  Taker taker(arguments, name, line, 2);
  Value out;
  if (const std::string* text = object.text()) {
    out = text_method(*text, name, taker, line);
  } else if (const Map* map = object.map()) {
    if (name == "items") {
      out = items_of(*map);
    } else if (name == "get") {
      const Value* found = map->find(taker.needed_text(0, "key"));
      const Value* otherwise = taker.at(1, "default");
      out = found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value::none();
    } else if (name == "keys" || name == "values") {
      List entries;
      for (const auto& [key, value] : map->entries()) {
        entries.push_back(name == "keys" ? Value::of(key) : value);
      }
      out = Value::of(std::move(entries));
    } else {
      refuse(line, "the mapping method", name, "items, keys, values and get");
    }
  } else if (object.is_undefined()) {
    throw Fault(line, "'" + object.get_if<Undefined>()->name + "' is undefined");
  } else {
    throw Fault(line, std::string(object.type_name()) + " has no method '" + name + "' here");
  }
  taker.check_named();
  return out;
}

bool contains(const Value& container, const Value& value, int line) {
  if (const std::string* text = container.text()) {
    if (value.text() == nullptr) throw Fault(line, "'in' a string wants a string");
    return text->find(*value.text()) != std::string::npos;
  }
  if (const Map* map = container.map()) {
    return value.text() != nullptr && map->find(*value.text()) != nullptr;
  }
  if (const List* list = container.list()) {
    return std::find(list->begin(), list->end(), value) != list->end();
  }
  if (container.is_undefined()) return false;
  throw Fault(
      line, std::string("'in' wants a string, a list or a mapping, not ") + container.type_name());
}

}  // namespace kvtier::jinja
