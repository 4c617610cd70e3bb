// map, select and their kin: filters that take the name of a filter, a test or an attribute.
#include <algorithm>
#include <array>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"

namespace kvtier::jinja {
namespace {

// Of what is false, none too, all of them make nothing.
Value map(Meter& meter, const Value& value, const Arguments& arguments) {
  List found;
  if (!value.truthy()) return make_iterator(meter, {});
  if (arguments.plain.empty()) {
    const Parameters parameters(meter, "map", arguments, {"attribute", "default"});
    const Value& path = parameters.needed(0);
    const Value* otherwise = parameters.at(1);
    if (otherwise != nullptr && otherwise->is_none()) otherwise = nullptr;
    for (const Value& element : elements_of(meter, value)) {
      meter.step();
      found.push_back(path_of(meter, element, path, otherwise));
    }
    return make_iterator(meter, std::move(found));
  }
  const std::string* name = arguments.plain[0].text();
  const Filter filter = name != nullptr ? find_filter(*name) : nullptr;
  if (filter == nullptr) meter.fail(unknown_filter(name != nullptr ? *name : ""));
  Arguments rest = arguments;
  rest.plain.erase(rest.plain.begin());
  for (const Value& element : elements_of(meter, value)) {
    meter.step();
    found.push_back(filter(meter, element, rest));
  }
  return make_iterator(meter, std::move(found));
}

// Those elements that a test holds for, or not; of the element or of what is at a path in it.
Value choose(Meter& meter, const Value& value, const Arguments& arguments, bool by_path,
             bool wanted) {
  if (!value.truthy()) return make_iterator(meter, {});
  std::size_t used = 0;
  Value path;
  if (by_path) {
    if (arguments.plain.empty()) meter.fail("selectattr lacks the attribute");
    path = arguments.plain[used++];
  }
  Test test = nullptr;
  if (arguments.plain.size() > used) {
    const std::string* name = arguments.plain[used++].text();
    test = name != nullptr ? find_test(*name) : nullptr;
    if (test == nullptr) meter.fail(unknown_test(name != nullptr ? *name : ""));
  }
  Arguments rest;
  rest.plain.assign(arguments.plain.begin() + static_cast<std::ptrdiff_t>(used),
                    arguments.plain.end());
  rest.named = arguments.named;
  List found;
  for (const Value& element : elements_of(meter, value)) {
    meter.step();
    const Value subject = by_path ? path_of(meter, element, path) : element;
    const bool holds = test != nullptr ? test(meter, subject, rest) : subject.truthy();
    if (holds == wanted) found.push_back(element);
  }
  return make_iterator(meter, std::move(found));
}

template <bool kByPath, bool kWanted>
Value chosen(Meter& meter, const Value& value, const Arguments& arguments) {
  return choose(meter, value, arguments, kByPath, kWanted);
}

}  // namespace

Filter find_choice_filter(std::string_view name) noexcept {
  if (name == "map") return map;
  if (name == "select") return chosen<false, true>;
  if (name == "reject") return chosen<false, false>;
  if (name == "selectattr") return chosen<true, true>;
  return name == "rejectattr" ? chosen<true, false> : nullptr;
}

Filter find_filter(std::string_view name) {
  for (const auto find :
       {find_text_filter, find_list_filter, find_choice_filter, find_number_filter}) {
    if (const Filter found = find(name)) return found;
  }
  return nullptr;
}

std::string unknown_filter(std::string_view name) {
  return "the filter '" + std::string(name) +
         "' is not supported; supported are abs, attr, batch, capitalize, center, count, d, "
         "default, "
         "dictsort, e, escape, first, float, format, groupby, indent, int, items, join, last, "
         "length, "
         "list, lower, map, max, min, reject, rejectattr, replace, reverse, round, safe, select, "
         "selectattr, slice, sort, string, sum, title, tojson, trim, truncate, unique, upper, "
         "urlencode and wordcount";
}

}  // namespace kvtier::jinja
