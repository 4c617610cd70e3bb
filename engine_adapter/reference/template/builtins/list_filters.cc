// Filters of lists and mappings.
#include <algorithm>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"
#include "engine_adapter/reference/template/value/unicode.h"

namespace kvtier::jinja {
namespace {

using Kind = Sequence::Kind;

Value length(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "length", arguments, {});
  return Value::of(length_of(meter, value));
}

Value first(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "first", arguments, {});
  if (auto* iterator = value.shared<Iterator>()) {
    return iterator->next < iterator->items.size() ? iterator->items[iterator->next++] : Value();
  }
  if (const std::string* text = value.text()) {
    if (text->empty()) return {};
    return make_text(meter, text->substr(0, character_at(*text).size));
  }
  const List elements = elements_of(meter, value);
  return elements.empty() ? Value() : elements.front();
}

Value last(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "last", arguments, {});
  if (value.shared<Iterator>() != nullptr) meter.fail("last: an iterator has none; use list");
  if (value.is_undefined()) fail_undefined(meter, value);
  const List elements = elements_of(meter, value);
  return elements.empty() ? Value() : elements.back();
}

Value list(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "list", arguments, {});
  return make_sequence(meter, elements_of(meter, value));
}

Value reverse(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "reverse", arguments, {});
  if (value.is_undefined()) fail_undefined(meter, value);
  List elements = elements_of(meter, value);
  std::ranges::reverse(elements);
  if (value.text() == nullptr) return make_iterator(meter, std::move(elements));
  std::string text;
  for (const Value& element : elements) text += *element.text();
  return make_text(meter, std::move(text));
}

Value pair_of(Meter& meter, const std::string& key, const Value& value) {
  return make_sequence(meter, {make_text(meter, key), value}, Kind::tuple);
}

Value items(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "items", arguments, {});
  List found;
  if (!value.is_undefined()) {
    if (value.map() == nullptr) {
      meter.fail(std::string("items: ") + value.type_name() + " is no mapping");
    }
    for (const auto& [key, entry] : value.map()->entries()) {
      found.push_back(pair_of(meter, key, entry));
    }
  }
  return make_iterator(meter, std::move(found));
}

// A text in lower case, so that case does not count.
Value without_case(Meter& meter, const Value& value) {
  if (value.text() == nullptr) return value;
  meter.look(8 * value.text()->size());
  return make_text(meter, change_case(*value.text(), Case::lower));
}

Value key_of(Meter& meter, const Value& element, const Value* path, bool case_sensitive) {
  const bool whole = path == nullptr || path->is_none();
  Value key = whole ? element : path_of(meter, element, *path);
  return case_sensitive ? key : without_case(meter, key);
}

// By several paths where `path` has commas.
List keys_of(Meter& meter, const Value& element, const Value* path, bool case_sensitive) {
  List keys;
  if (path == nullptr || path->text() == nullptr || path->text()->find(',') == std::string::npos) {
    keys.push_back(key_of(meter, element, path, case_sensitive));
    return keys;
  }
  std::string_view rest = *path->text();
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const Value part = make_text(meter, std::string(rest.substr(0, comma)));
    keys.push_back(key_of(meter, element, &part, case_sensitive));
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  return keys;
}

int order_keys(Meter& meter, const List& a, const List& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (const int compared = order(meter, a[i], b[i]); compared != 0) return compared;
  }
  return 0;
}

// Equal ones stay in their order, also where it is turned round.
List sorted_by(Meter& meter, const List& elements, const std::vector<List>& keys, bool reversed) {
  std::vector<std::size_t> places(elements.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
  // Every element is compared with another once, so that what cannot be ordered is always found.
  for (std::size_t i = 1; i < keys.size(); ++i) order_keys(meter, keys[i - 1], keys[i]);
  std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
    const int compared = order_keys(meter, keys[a], keys[b]);
    return reversed ? compared > 0 : compared < 0;
  });
  List found;
  found.reserve(places.size());
  for (const std::size_t place : places) found.push_back(elements[place]);
  return found;
}

Value sort(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const List elements = elements_of(meter, value);
  std::vector<List> keys;
  for (const Value& element : elements) {
    keys.push_back(keys_of(meter, element, parameters.at(2), parameters.flag(1, false)));
  }
  return make_sequence(meter, sorted_by(meter, elements, keys, parameters.flag(0, false)));
}

Value dictsort(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (value.map() == nullptr) {
    meter.fail(std::string("dictsort: ") + value.type_name() + " is no mapping");
  }
  const std::string by = parameters.text(1) != nullptr ? *parameters.text(1) : "key";
  if (by != "key" && by != "value") meter.fail("dictsort: 'by' must be key or value");
  List pairs;
  std::vector<List> keys;
  for (const auto& [key, entry] : value.map()->entries()) {
    pairs.push_back(pair_of(meter, key, entry));
    const Value& chosen = pairs.back().sequence()->items[by == "key" ? 0 : 1];
    keys.push_back({key_of(meter, chosen, nullptr, parameters.flag(0, false))});
  }
  return make_sequence(meter, sorted_by(meter, pairs, keys, parameters.flag(2, false)));
}

Value unique(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "unique", arguments, {"case_sensitive", "attribute"});
  List seen;
  List found;
  for (const Value& element : elements_of(meter, value)) {
    const Value key = key_of(meter, element, parameters.at(1), parameters.flag(0, false));
    const auto same = [&](const Value& other) { return equal(meter, other, key); };
    if (std::ranges::any_of(seen, same)) continue;
    seen.push_back(key);
    found.push_back(element);
  }
  return make_iterator(meter, std::move(found));
}

template <int kSign>
Value extreme(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "min", arguments, {"case_sensitive", "attribute"});
  Value best;
  Value best_key;
  bool any = false;
  for (const Value& element : elements_of(meter, value)) {
    const Value key = key_of(meter, element, parameters.at(1), parameters.flag(0, false));
    if (any && kSign * order(meter, key, best_key) <= 0) continue;
    best = element;
    best_key = key;
    any = true;
  }
  return best;
}

Value groupby(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "groupby", arguments,
                              {"attribute", "default", "case_sensitive"});
  const List elements = elements_of(meter, value);
  const bool case_sensitive = parameters.flag(2, false);
  std::vector<List> keys;
  List pairs;  // of key and element
  for (const Value& element : elements) {
    Value key = path_of(meter, element, parameters.needed(0));
    if (key.is_undefined() && parameters.at(1) != nullptr) key = *parameters.at(1);
    keys.push_back({case_sensitive ? key : without_case(meter, key)});
    pairs.push_back(make_sequence(meter, {key, element, keys.back()[0]}, Kind::tuple));
  }
  List groups;
  List members;
  const auto close = [&](const Value& key) {
    if (members.empty()) return;
    const Value all = make_sequence(meter, std::move(members));
    groups.push_back(make_sequence(meter, {key, all}, Kind::group));
    members = {};
  };
  Value now;
  Value first_key;
  for (const Value& pair : sorted_by(meter, pairs, keys, false)) {
    const List& parts = pair.sequence()->items;
    if (!members.empty() && !equal(meter, parts[2], now)) close(first_key);
    if (members.empty()) first_key = parts[0];
    now = parts[2];
    members.push_back(parts[1]);
  }
  close(first_key);
  return make_sequence(meter, std::move(groups));
}

Value batch(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "batch", arguments, {"linecount", "fill_with"});
  const std::int64_t size = parameters.whole(0, 0);
  if (size < 1 || size > 1'000'000) meter.fail("batch: the size must be from 1 to 1000000");
  const Value* fill = parameters.at(1);
  List rows;
  List row;
  for (const Value& element : elements_of(meter, value)) {
    if (row.size() == static_cast<std::size_t>(size)) {
      rows.push_back(make_sequence(meter, std::exchange(row, {})));
    }
    row.push_back(element);
  }
  if (!row.empty()) {
    if (fill != nullptr && !fill->is_none()) {
      meter.make(static_cast<std::size_t>(size) * sizeof(Value));
      row.resize(static_cast<std::size_t>(size), *fill);
    }
    rows.push_back(make_sequence(meter, std::move(row)));
  }
  return make_iterator(meter, std::move(rows));
}

Value slice_columns(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "slice", arguments, {"slices", "fill_with"});
  const std::int64_t asked = parameters.whole(0, 0);
  if (asked < 1 || asked > 100'000) meter.fail("slice: the number must be from 1 to 100000");
  const List elements = elements_of(meter, value);
  const auto columns = static_cast<std::size_t>(asked);
  const std::size_t each = elements.size() / columns;
  const std::size_t longer = elements.size() % columns;
  const Value* fill = parameters.at(1);
  List rows;
  std::size_t at = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    const std::size_t end = at + each + (i < longer ? 1 : 0);
    List row(elements.begin() + static_cast<std::ptrdiff_t>(at),
             elements.begin() + static_cast<std::ptrdiff_t>(end));
    if (fill != nullptr && !fill->is_none() && i >= longer && longer != 0) row.push_back(*fill);
    at = end;
    rows.push_back(make_sequence(meter, std::move(row)));
  }
  return make_iterator(meter, std::move(rows));
}

Value otherwise(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "default", arguments, {"default_value", "boolean"});
  const bool false_too = parameters.flag(1, false) && !value.truthy();
  if (!value.is_undefined() && !false_too) return value;
  return parameters.at(0) != nullptr ? *parameters.at(0) : make_text(meter, "");
}

Value attribute(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "attr", arguments, {"name"});
  const std::string& name = parameters.needed_text(0);
  // Not an entry of a mapping.
  if (value.map() != nullptr && value.map()->find(name) != nullptr) return Value::undefined(name);
  return attribute_of(meter, value, name);
}

constexpr std::pair<std::string_view, Filter> kListFilters[] = {
    {"length", length},     {"count", length},    {"first", first},         {"last", last},
    {"list", list},         {"reverse", reverse}, {"items", items},         {"sort", sort},
    {"dictsort", dictsort}, {"unique", unique},   {"min", extreme<-1>},     {"max", extreme<1>},
    {"groupby", groupby},   {"batch", batch},     {"slice", slice_columns}, {"default", otherwise},
    {"d", otherwise},       {"attr", attribute},
};

}  // namespace

Filter find_list_filter(std::string_view name) noexcept {
  for (const auto& [known, filter] : kListFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

}  // namespace kvtier::jinja
