// object.name, object[key], and the methods of mappings and lists.
#include <algorithm>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"
#include "engine_adapter/reference/template/value/unicode.h"

namespace kvtier::jinja {
namespace {

using Kind = Sequence::Kind;

// Those that change what they are called of are not there: jinja2's sandbox does not let them.
constexpr std::string_view kMapMethods[] = {"items", "keys", "values", "get", "copy"};
constexpr std::string_view kChangingMap[] = {"pop",    "popitem",    "clear",
                                             "update", "setdefault", "fromkeys"};
constexpr std::string_view kListMethods[] = {"index", "count", "copy"};

Value method_of(Meter& meter, const Value& object, const std::string& name) {
  meter.make(sizeof(Callable) + name.size());
  if (object.depth() >= kValueDepthMax) meter.fail("values are nested too deeply");
  return Value(
      Value::Any(std::make_shared<const Callable>(Callable{Callable::Kind::method, name, object})));
}

Value loop_attribute(Meter& meter, const Value& object, const Loop& loop, const std::string& name) {
  const auto at = static_cast<std::int64_t>(loop.round);
  const auto count = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return Value::of(at + 1);
  if (name == "index0") return Value::of(at);
  if (name == "revindex") return Value::of(count - at);
  if (name == "revindex0") return Value::of(count - at - 1);
  if (name == "first") return Value::of(at == 0);
  if (name == "last") return Value::of(at + 1 == count);
  if (name == "length") return Value::of(count);
  if (name == "depth") return Value::of(loop.level);
  if (name == "depth0") return Value::of(loop.level - 1);
  if (name == "previtem" && at > 0) return loop.items[loop.round - 1];
  if (name == "nextitem" && at + 1 < count) return loop.items[loop.round + 1];
  if (name == "cycle" || name == "changed") return method_of(meter, object, name);
  return Value::undefined(name);
}

bool is_index(std::string_view text) noexcept {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

Value element_at(Meter& meter, const Value& object, std::int64_t index) {
  const std::int64_t size = length_of(meter, object);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Value::undefined(std::to_string(index));
  if (const Sequence* sequence = object.sequence()) {
    return sequence->items[static_cast<std::size_t>(index)];
  }
  const std::string& text = *object.text();
  const std::size_t at = offset_of(text, static_cast<std::size_t>(index));
  return make_text(meter, text.substr(at, character_at(std::string_view(text).substr(at)).size),
                   object.is_markup());
}

Value map_method(Meter& meter, const Callable& method, const Arguments& arguments) {
  const Map& map = *method.self.map();
  if (method.name == "get") {
    const Parameters parameters(meter, "get", arguments, {"/key", "/default"});
    const std::string* key = parameters.needed(0).text();
    const Value* found = key != nullptr ? map.find(*key) : nullptr;
    if (found != nullptr) return *found;
    return parameters.at(1) != nullptr ? *parameters.at(1) : Value::none();
  }
  const Parameters parameters(meter, method.name, arguments, {});
  if (method.name == "copy") return method.self;
  List found;
  for (const auto& [key, value] : map.entries()) {
    if (method.name == "values") {
      meter.make(sizeof(Value));
      found.push_back(value);
      continue;
    }
    Value name = make_text(meter, key);
    found.push_back(method.name == "keys" ? name
                                          : make_sequence(meter, {name, value}, Kind::tuple));
  }
  return make_sequence(meter, std::move(found),
                       method.name == "items"  ? Kind::items
                       : method.name == "keys" ? Kind::keys
                                               : Kind::values);
}

Value list_method(Meter& meter, const Callable& method, const Arguments& arguments) {
  const List& items = method.self.sequence()->items;
  if (method.name == "copy") {
    const Parameters parameters(meter, "copy", arguments, {});
    return method.self;
  }
  const Parameters parameters(meter, method.name, arguments, {"/value"});
  std::int64_t count = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equal(meter, items[i], parameters.needed(0))) continue;
    if (method.name == "index") return Value::of(static_cast<std::int64_t>(i));
    ++count;
  }
  if (method.name == "index") meter.fail("index: the list does not have it");
  return Value::of(count);
}

Value loop_method(Meter& meter, const Callable& method, const Arguments& arguments) {
  Loop& loop = *method.self.shared<Loop>();
  if (!arguments.named.empty()) meter.fail("loop." + method.name + " has no such argument");
  if (method.name == "cycle") {
    if (arguments.plain.empty()) meter.fail("loop.cycle wants arguments");
    return arguments.plain[loop.round % arguments.plain.size()];
  }
  Value now = make_sequence(meter, arguments.plain, Kind::tuple);
  const bool changed = !loop.asked_changed || !equal(meter, now, loop.changed);
  loop.asked_changed = true;
  loop.depth = std::max(loop.depth, now.depth() + 1);
  if (loop.depth > kValueDepthMax) meter.fail("values are nested too deeply");
  loop.changed = std::move(now);
  return Value::of(changed);
}

}  // namespace

Value attribute_of(Meter& meter, const Value& object, const std::string& name) {
  if (object.is_undefined()) fail_undefined(meter, object);
  if (const Map* map = object.map()) {
    if (std::ranges::find(kMapMethods, name) != std::end(kMapMethods)) {
      return method_of(meter, object, name);
    }
    if (std::ranges::find(kChangingMap, name) != std::end(kChangingMap)) {
      return Value::undefined(name);
    }
    const Value* found = map->find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }
  if (object.text() != nullptr) {
    return is_text_method(name) ? method_of(meter, object, name) : Value::undefined(name);
  }
  if (const auto* space = object.shared<Namespace>()) {
    const Value* found = space->attributes.find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }
  if (const auto* loop = object.shared<Loop>()) return loop_attribute(meter, object, *loop, name);
  if (const Sequence* sequence = object.sequence()) {
    if (sequence->kind == Kind::group && (name == "grouper" || name == "list")) {
      return sequence->items[name == "grouper" ? 0 : 1];
    }
    const bool known = std::ranges::find(kListMethods, name) != std::end(kListMethods);
    if (sequence->kind <= Kind::range && known &&
        (name != "copy" || sequence->kind == Kind::list)) {
      return method_of(meter, object, name);
    }
  }
  if (const auto* callable = object.shared<const Callable>();
      callable != nullptr && callable->kind == Callable::Kind::macro && name == "name") {
    return make_text(meter, callable->name);
  }
  return Value::undefined(name);
}

Value item_of(Meter& meter, const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(meter, object);
  if (const std::string* name = key.text()) {
    if (const Map* map = object.map()) {
      if (const Value* found = map->find(*name)) return *found;
    }
    return attribute_of(meter, object, *name);
  }
  const Sequence* sequence = object.sequence();
  const bool indexed =
      object.text() != nullptr || (sequence != nullptr && sequence->kind <= Kind::range);
  if (indexed && key.is_whole()) return element_at(meter, object, key.whole());
  return Value::undefined("the element");
}

Value path_of(Meter& meter, const Value& object, const Value& path, const Value* otherwise) {
  if (path.is_whole()) return item_of(meter, object, path);
  if (path.text() == nullptr) meter.fail("an attribute's name must be a string");
  std::string_view rest = *path.text();
  Value found = object;
  for (;;) {
    meter.step();
    const std::size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    found = item_of(meter, found,
                    is_index(part) ? Value::of(std::int64_t{std::stol(part)}) : Value::of(part));
    if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
    if (dot == std::string_view::npos) return found;
    rest.remove_prefix(dot + 1);
  }
}

Value call_method(Meter& meter, const Callable& method, const Arguments& arguments) {
  if (method.self.text() != nullptr) {
    return call_text_method(meter, method.self, method.name, arguments);
  }
  if (method.self.map() != nullptr) return map_method(meter, method, arguments);
  if (method.self.sequence() != nullptr) return list_method(meter, method, arguments);
  return loop_method(meter, method, arguments);
}

}  // namespace kvtier::jinja
