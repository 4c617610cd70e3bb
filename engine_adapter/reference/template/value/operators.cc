#include "engine_adapter/reference/template/value/operators.h"

#include <algorithm>
#include <cmath>

#include "engine_adapter/reference/template/value/unicode.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

using Kind = Sequence::Kind;

[[noreturn]] void fail_between(Meter& meter, Operator op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(meter, a);
  if (b.is_undefined()) fail_undefined(meter, b);
  meter.fail(std::string("'") + sign_of(op) + "' between " + a.type_name() + " and " +
             b.type_name());
}

// `value` is read after what tells whether it overflowed has been computed.
Value checked(Meter& meter, bool overflow, const std::int64_t& value) {
  if (overflow) meter.fail("a number is beyond 64 bits");
  return Value::of(value);
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value whole_power(Meter& meter, std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) meter.fail("division by zero");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  if (base >= -1 && base <= 1)
    exponent = base == -1 ? exponent % 2 : std::min<std::int64_t>(exponent, 1);
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return checked(meter, true, 0);
  }
  return Value::of(result);
}

Value whole_arithmetic(Meter& meter, Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  switch (op) {
    case Operator::add:
      return checked(meter, __builtin_add_overflow(a, b, &out), out);
    case Operator::subtract:
      return checked(meter, __builtin_sub_overflow(a, b, &out), out);
    case Operator::multiply:
      return checked(meter, __builtin_mul_overflow(a, b, &out), out);
    case Operator::power:
      return whole_power(meter, a, b);
    default:
      break;
  }
  if (b == 0) meter.fail("division by zero");
  if (op == Operator::divide) return Value::of(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {
    if (op == Operator::modulo) return Value::of(std::int64_t{0});
    return checked(meter, __builtin_sub_overflow(std::int64_t{0}, a, &out), out);
  }
  const std::int64_t quotient = floor_divided(a, b);
  return Value::of(op == Operator::floor_divide ? quotient : a - quotient * b);
}

Value real_arithmetic(Meter& meter, Operator op, double a, double b) {
  switch (op) {
    case Operator::add:
      return Value::of(a + b);
    case Operator::subtract:
      return Value::of(a - b);
    case Operator::multiply:
      return Value::of(a * b);
    case Operator::power: {
      const double result = std::pow(a, b);
      if (!std::isfinite(result)) meter.fail("a power has no value");
      return Value::of(result);
    }
    default:
      break;
  }
  if (b == 0) meter.fail("division by zero");
  if (op == Operator::divide) return Value::of(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return Value::of(op == Operator::modulo ? rest : std::floor((a - rest) / b + 0.5));
}

Value repeated(Meter& meter, const Value& value, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  const auto count = static_cast<std::size_t>(times);
  const std::string* text = value.text();
  const std::size_t one = text != nullptr ? text->size() : value.sequence()->items.size();
  const std::size_t bytes = text != nullptr ? one : one * sizeof(Value);
  std::size_t total = 0;
  if (__builtin_mul_overflow(bytes, count, &total)) total = SIZE_MAX / 2;
  meter.make(total);
  if (text != nullptr) {
    std::string out;
    out.reserve(total);
    if (one == 1) out.assign(count, (*text)[0]);
    for (std::size_t i = 0; one > 1 && i < count; ++i) out += *text;
    return Value::of(std::move(out), value.is_markup());
  }
  List items;
  for (std::size_t i = 0; one != 0 && i < count; ++i) {
    items.insert(items.end(), value.sequence()->items.begin(), value.sequence()->items.end());
  }
  return make_sequence(meter, std::move(items), value.sequence()->kind);
}

bool is_repeatable(const Value& value) noexcept {
  return value.text() != nullptr ||
         (value.sequence() != nullptr && value.sequence()->kind <= Kind::tuple);
}

Value added_texts(Meter& meter, const Value& a, const Value& b) {
  const bool markup = a.is_markup() || b.is_markup();
  meter.make(a.text()->size() + b.text()->size());
  std::string out = markup && !a.is_markup() ? escape_html(*a.text()) : *a.text();
  out += markup && !b.is_markup() ? escape_html(*b.text()) : *b.text();
  return make_text(meter, std::move(out), markup);
}

Value added_lists(Meter& meter, const Sequence& a, const Sequence& b) {
  meter.make((a.items.size() + b.items.size()) * sizeof(Value));
  List both = a.items;
  both.insert(both.end(), b.items.begin(), b.items.end());
  return make_sequence(meter, std::move(both), a.kind);
}

Value formatted(Meter& meter, const Value& format, const Value& given) {
  const Sequence* tuple = given.sequence();
  if (tuple != nullptr && tuple->kind == Kind::tuple) {
    return Value::of(percent_format(meter, *format.text(), tuple->items, nullptr));
  }
  return Value::of(percent_format(meter, *format.text(), {given}, given.map()));
}

Value arithmetic(Meter& meter, Operator op, const Value& a, const Value& b) {
  if (op == Operator::modulo && a.text() != nullptr) return formatted(meter, a, b);
  if (op == Operator::add && a.text() != nullptr && b.text() != nullptr) {
    return added_texts(meter, a, b);
  }
  if (op == Operator::add && is_repeatable(a) && is_repeatable(b) && a.sequence() != nullptr &&
      b.sequence() != nullptr && a.sequence()->kind == b.sequence()->kind) {
    return added_lists(meter, *a.sequence(), *b.sequence());
  }
  if (op == Operator::multiply && is_repeatable(a) && b.is_whole()) {
    return repeated(meter, a, b.whole());
  }
  if (op == Operator::multiply && is_repeatable(b) && a.is_whole()) {
    return repeated(meter, b, a.whole());
  }
  if (!a.is_number() || !b.is_number()) fail_between(meter, op, a, b);
  if (a.is_whole() && b.is_whole()) return whole_arithmetic(meter, op, a.whole(), b.whole());
  return real_arithmetic(meter, op, a.number(), b.number());
}

bool equal_items(Meter& meter, const List& a, const List& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal(meter, a[i], b[i])) return false;
  }
  return true;
}

bool equal_maps(Meter& meter, const Map& a, const Map& b) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(meter, value, *other)) return false;
  }
  return true;
}

int order_numbers(double a, double b) noexcept {
  return a < b ? -1 : a > b ? 1 : 0;
}

}  // namespace

const char* sign_of(Operator op) noexcept {
  constexpr const char* kSigns[] = {"+",  "-", "*", "/",  "//", "%",  "**",     "~",   "==",
                                    "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"};
  return kSigns[static_cast<std::size_t>(op)];
}

void fail_undefined(Meter& meter, const Value& value) {
  meter.fail("'" + value.get_if<Undefined>()->what() + "' is undefined");
}

bool equal(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  }
  if (a.any().index() != b.any().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const std::string* text = a.text()) {
    meter.look(std::min(text->size(), b.text()->size()));
    return *text == *b.text();
  }
  if (const Sequence* sequence = a.sequence()) {
    const auto is_tuple = [](Kind kind) { return kind == Kind::tuple || kind == Kind::group; };
    const Kind kind = b.sequence()->kind;
    if (sequence->kind != kind && !(is_tuple(sequence->kind) && is_tuple(kind))) return false;
    return equal_items(meter, sequence->items, b.sequence()->items);
  }
  if (const Map* map = a.map()) return equal_maps(meter, *map, *b.map());
  // Only the same one is equal to the others.
  return a.shared<Namespace>() == b.shared<Namespace>() &&
         a.shared<Iterator>() == b.shared<Iterator>() && a.shared<Loop>() == b.shared<Loop>() &&
         a.shared<const Callable>() == b.shared<const Callable>();
}

int order(Meter& meter, const Value& a, const Value& b, Operator op) {
  meter.step();
  if (a.is_whole() && b.is_whole()) {
    return a.whole() < b.whole() ? -1 : a.whole() > b.whole() ? 1 : 0;
  }
  if (a.is_number() && b.is_number()) return order_numbers(a.number(), b.number());
  if (a.text() != nullptr && b.text() != nullptr) {
    meter.look(std::min(a.text()->size(), b.text()->size()));
    return a.text()->compare(*b.text());
  }
  if (is_repeatable(a) && is_repeatable(b) && a.sequence() != nullptr && b.sequence() != nullptr &&
      a.sequence()->kind == b.sequence()->kind) {
    const List& left = a.sequence()->items;
    const List& right = b.sequence()->items;
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(meter, left[i], right[i])) return order(meter, left[i], right[i], op);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  fail_between(meter, op, a, b);
}

bool contains(Meter& meter, const Value& container, const Value& value) {
  if (const std::string* text = container.text()) {
    if (value.is_undefined()) fail_undefined(meter, value);
    if (value.text() == nullptr) meter.fail("'in' a string wants a string");
    meter.look(text->size());
    return find_text(*text, *value.text(), 0) != std::string::npos;
  }
  if (const Map* map = container.map()) {
    if (value.sequence() != nullptr && value.sequence()->kind == Kind::list) {
      meter.fail("a list is no key");
    }
    return value.text() != nullptr && map->find(*value.text()) != nullptr;
  }
  for (const Value& element : elements_of(meter, container)) {
    if (equal(meter, element, value)) return true;
  }
  return false;
}

Value apply(Meter& meter, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::equal:
      return Value::of(equal(meter, a, b));
    case Operator::unequal:
      return Value::of(!equal(meter, a, b));
    case Operator::less:
      return Value::of(order(meter, a, b, op) < 0);
    case Operator::greater:
      return Value::of(order(meter, a, b, op) > 0);
    case Operator::at_most:
      return Value::of(order(meter, a, b, op) <= 0);
    case Operator::at_least:
      return Value::of(order(meter, a, b, op) >= 0);
    case Operator::in:
      return Value::of(contains(meter, b, a));
    case Operator::not_in:
      return Value::of(!contains(meter, b, a));
    case Operator::concatenate: {
      std::string left = str_of(meter, a);
      left += str_of(meter, b);
      return make_text(meter, std::move(left));
    }
    default:
      return arithmetic(meter, op, a, b);
  }
}

Value negate(Meter& meter, const Value& value) {
  if (value.is_undefined()) fail_undefined(meter, value);
  if (!value.is_number()) meter.fail(std::string("'-' before ") + value.type_name());
  if (const double* real = value.get_if<double>()) return Value::of(-*real);
  return whole_arithmetic(meter, Operator::subtract, 0, value.whole());
}

List characters_of(Meter& meter, const std::string& text) {
  List found;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t size = character_at(rest).size;
    meter.step();
    meter.make(sizeof(Value));
    found.push_back(make_text(meter, std::string(rest.substr(0, size))));
    rest.remove_prefix(size);
  }
  return found;
}

List elements_of(Meter& meter, const Value& value) {
  if (const Sequence* sequence = value.sequence()) {
    meter.make(sequence->items.size() * sizeof(Value));
    return sequence->items;
  }
  if (auto* iterator = value.shared<Iterator>()) {
    meter.make((iterator->items.size() - iterator->next) * sizeof(Value));
    List rest(iterator->items.begin() + static_cast<std::ptrdiff_t>(iterator->next),
              iterator->items.end());
    iterator->next = iterator->items.size();
    return rest;
  }
  if (const std::string* text = value.text()) return characters_of(meter, *text);
  List found;
  if (const Map* map = value.map()) {
    for (const auto& entry : map->entries()) found.push_back(make_text(meter, entry.first));
  } else if (!value.is_undefined()) {
    meter.fail(std::string(value.type_name()) + " has no elements");
  }
  return found;
}

std::int64_t length_of(Meter& meter, const Value& value) {
  if (const std::string* text = value.text()) {
    meter.look(text->size());
    return static_cast<std::int64_t>(count_characters(*text));
  }
  if (const Map* map = value.map()) return static_cast<std::int64_t>(map->entries().size());
  if (const Sequence* sequence = value.sequence()) {
    return static_cast<std::int64_t>(sequence->items.size());
  }
  if (const Loop* loop = value.shared<Loop>()) return static_cast<std::int64_t>(loop->items.size());
  if (value.is_undefined()) return 0;
  meter.fail(std::string(value.type_name()) + " has no length");
}

Value slice(Meter& meter, const Value& object, const Value (&bounds)[3]) {
  if (object.is_undefined()) fail_undefined(meter, object);
  const Sequence* sequence = object.sequence();
  if (object.text() == nullptr && (sequence == nullptr || sequence->kind > Kind::range)) {
    return Value::undefined("the slice");
  }
  for (const Value& bound : bounds) {
    if (!bound.is_none() && !bound.is_whole()) meter.fail("a slice wants whole numbers");
  }
  const std::int64_t stride = bounds[2].is_none() ? 1 : bounds[2].whole();
  if (stride == 0) meter.fail("a slice's step is 0");
  const std::int64_t size = length_of(meter, object);
  const std::int64_t low = stride > 0 ? 0 : -1;
  const std::int64_t high = stride > 0 ? size : size - 1;
  const auto settled = [&](const Value& bound, std::int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    const std::int64_t at = bound.whole();
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  const std::int64_t begin = settled(bounds[0], stride > 0 ? low : high);
  const std::int64_t end = settled(bounds[1], stride > 0 ? high : low);
  if (object.text() != nullptr && stride == 1) {
    const std::string& text = *object.text();
    const std::size_t from = offset_of(text, static_cast<std::size_t>(begin));
    const std::size_t count = end > begin ? static_cast<std::size_t>(end - begin) : 0;
    const std::size_t bytes = offset_of(std::string_view(text).substr(from), count);
    return make_text(meter, text.substr(from, bytes), object.is_markup());
  }
  const List all = sequence != nullptr ? List{} : characters_of(meter, *object.text());
  const List& items = sequence != nullptr ? sequence->items : all;
  List found;
  for (std::int64_t i = begin; stride > 0 ? i < end : i > end;) {
    meter.make(sizeof(Value));
    found.push_back(items[static_cast<std::size_t>(i)]);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (sequence != nullptr) return make_sequence(meter, std::move(found), sequence->kind);
  std::string text;
  for (const Value& character : found) text += *character.text();
  return make_text(meter, std::move(text), object.is_markup());
}

}  // namespace kvtier::jinja
