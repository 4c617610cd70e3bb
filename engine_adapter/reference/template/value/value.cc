#include "engine_adapter/reference/template/value/value.h"

#include <algorithm>

namespace kvtier::jinja {
namespace {

constexpr std::size_t kFewEntries = 8;
constexpr std::size_t kOverhead = 48;  // of what is shared

int deepest(const List& items) noexcept {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

void check_depth(const Meter& meter, int depth) {
  if (depth > kValueDepthMax) {
    meter.fail("values are nested too deeply: more than " + std::to_string(kValueDepthMax));
  }
}

}  // namespace

const std::string& Undefined::what() const noexcept {
  static const std::string kNothing = "a value";
  return name ? *name : kNothing;
}

const Value* Map::find(std::string_view key) const noexcept {
  if (!places_.empty()) {
    const auto place = places_.find(key);
    return place != places_.end() ? &entries_[place->second].second : nullptr;
  }
  for (const auto& [name, value] : entries_) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Map::set(std::string key, Value value) {
  depth_ = std::max(depth_, value.depth() + 1);
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() <= kFewEntries) return;
  if (places_.empty()) {
    for (std::size_t i = 0; i + 1 < entries_.size(); ++i) places_.emplace(entries_[i].first, i);
  }
  places_.emplace(entries_.back().first, entries_.size() - 1);
}

void Map::clear() {
  entries_.clear();
  places_.clear();
  depth_ = 1;
}

Value Value::undefined(const std::string& name) {
  return Value(Any(Undefined{std::make_shared<const std::string>(name)}));
}

Value Value::of(std::string text, bool markup) {
  return Value(Any(std::make_shared<const Text>(Text{std::move(text), markup})));
}

Value Value::of(List list) {
  const int depth = deepest(list);
  return Value(Any(
      std::make_shared<const Sequence>(Sequence{Sequence::Kind::list, std::move(list), depth})));
}

Value Value::of(Map map) {
  return Value(Any(std::make_shared<const Map>(std::move(map))));
}

const std::string* Value::text() const noexcept {
  const Text* found = shared<const Text>();
  return found != nullptr ? &found->bytes : nullptr;
}

bool Value::is_markup() const noexcept {
  const Text* found = shared<const Text>();
  return found != nullptr && found->markup;
}

bool Value::is_whole() const noexcept {
  return get_if<bool>() != nullptr || get_if<std::int64_t>() != nullptr;
}

std::int64_t Value::whole() const noexcept {
  if (const bool* flag = get_if<bool>()) return *flag ? 1 : 0;
  const auto* number = get_if<std::int64_t>();
  return number != nullptr ? *number : 0;
}

bool Value::is_number() const noexcept {
  return is_whole() || get_if<double>() != nullptr;
}

double Value::number() const noexcept {
  const double* real = get_if<double>();
  return real != nullptr ? *real : static_cast<double>(whole());
}

bool Value::truthy() const noexcept {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (const std::string* t = text()) return !t->empty();
  if (const Sequence* s = sequence()) return !s->items.empty();
  if (const Map* m = map()) return !m->entries().empty();
  return true;
}

const char* Value::type_name() const noexcept {
  constexpr const char* kNames[] = {"undefined",   "none",        "a boolean",  "a whole number",
                                    "a number",    "a string",    "a list",     "a mapping",
                                    "a namespace", "an iterator", "a function", "a loop"};
  if (const Sequence* s = sequence()) {
    constexpr const char* kSequences[] = {"a list", "a tuple", "a tuple", "a range",
                                          "keys",   "values",  "items"};
    return kSequences[static_cast<std::size_t>(s->kind)];
  }
  return kNames[any_.index()];
}

int Value::depth() const noexcept {
  if (const Sequence* s = sequence()) return s->depth;
  if (const Map* m = map()) return m->depth();
  if (const Iterator* i = shared<Iterator>()) return i->depth;
  if (const Loop* loop = shared<Loop>()) return loop->depth;
  if (const Callable* callable = shared<const Callable>()) return callable->self.depth() + 1;
  return 0;
}

Value make_text(Meter& meter, std::string text, bool markup) {
  meter.make(text.size() + kOverhead);
  return Value::of(std::move(text), markup);
}

int depth_of(Meter& meter, const List& items) {
  meter.make(items.size() * sizeof(Value) + kOverhead);
  meter.look(items.size() * sizeof(Value));
  const int depth = deepest(items);
  check_depth(meter, depth);
  return depth;
}

Value make_sequence(Meter& meter, List items, Sequence::Kind kind) {
  const int depth = depth_of(meter, items);
  return Value(
      Value::Any(std::make_shared<const Sequence>(Sequence{kind, std::move(items), depth})));
}

Value make_iterator(Meter& meter, List items) {
  const int depth = depth_of(meter, items);
  return Value(Value::Any(std::make_shared<Iterator>(Iterator{std::move(items), 0, depth})));
}

Value make_map(Meter& meter, Map map) {
  std::size_t bytes = kOverhead;
  for (const auto& entry : map.entries()) bytes += 2 * entry.first.size() + 4 * sizeof(Value);
  meter.make(bytes);
  check_depth(meter, map.depth());
  return Value::of(std::move(map));
}

}  // namespace kvtier::jinja
