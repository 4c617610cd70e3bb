// Filters that make numbers.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"
#include "engine_adapter/reference/template/value/unicode.h"

namespace kvtier::jinja {
namespace {

// A text without white space around it and without '_' between digits.
std::string number_text(const std::string& text) {
  const std::string_view inner = strip_left(strip_right(text, nullptr), nullptr);
  std::string out;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    const bool between = i > 0 && i + 1 < inner.size() && inner[i] == '_' && inner[i - 1] != '_';
    if (!between) out += inner[i];
  }
  return out;
}

std::optional<double> read_real(const std::string& text) {
  const std::string written = number_text(text);
  if (written.empty() || written.find_first_of("xXpP(") != std::string::npos) return {};
  char* end = nullptr;
  const double number = std::strtod(written.c_str(), &end);
  if (*end != '\0') return {};
  return number;
}

std::optional<std::int64_t> read_whole(Meter& meter, const std::string& text, std::int64_t base) {
  std::string written = number_text(text);
  if (written.empty()) return {};
  if (base == 2 || base == 8) {  // strtoll does not know 0b and 0o
    const std::size_t at = written[0] == '-' || written[0] == '+' ? 1 : 0;
    const std::string prefix = written.substr(at, 2);
    if (prefix == (base == 2 ? "0b" : "0o")) written.erase(at, 2);
  }
  char* end = nullptr;
  errno = 0;
  const std::int64_t number = std::strtoll(written.c_str(), &end, static_cast<int>(base));
  if (*end != '\0' || end == written.c_str()) return {};
  if (errno == ERANGE) meter.fail("a number is beyond 64 bits");
  return number;
}

Value truncated(Meter& meter, double number) {
  if (!(number > -9.2e18 && number < 9.2e18)) meter.fail("a number is beyond 64 bits");
  return Value::of(static_cast<std::int64_t>(number));
}

Value to_int(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "int", arguments, {"default", "base"});
  const std::int64_t base = parameters.whole(1, 10);
  if (base < 2 || base > 36) meter.fail("int: the base must be from 2 to 36");
  if (value.is_undefined()) fail_undefined(meter, value);
  if (value.is_whole()) return Value::of(value.whole());
  if (value.is_number()) return truncated(meter, value.number());
  if (const std::string* text = value.text()) {
    if (const auto number = read_whole(meter, *text, base)) return Value::of(*number);
    const auto real = read_real(*text);
    if (real && std::isfinite(*real)) return truncated(meter, *real);
  }
  return parameters.at(0) != nullptr ? *parameters.at(0) : Value::of(std::int64_t{0});
}

Value to_float(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "float", arguments, {"default"});
  if (value.is_undefined()) fail_undefined(meter, value);
  if (value.is_number()) return Value::of(value.number());
  if (const std::string* text = value.text()) {
    if (const auto number = read_real(*text)) return Value::of(*number);
  }
  return parameters.at(0) != nullptr ? *parameters.at(0) : Value::of(0.0);
}

Value absolute(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "abs", arguments, {});
  if (!value.is_number()) meter.fail(std::string("abs: ") + value.type_name() + " is no number");
  return value.number() < 0 ? negate(meter, value)
         : value.is_whole() ? Value::of(value.whole())
                            : value;
}

Value round_number(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "round", arguments, {"precision", "method"});
  if (!value.is_number()) meter.fail(std::string("round: ") + value.type_name() + " is no number");
  const std::int64_t digits = parameters.whole(0, 0);
  if (digits < 0 || digits > 100) meter.fail("round: the precision must be from 0 to 100");
  const std::string method = parameters.text(1) != nullptr ? *parameters.text(1) : "common";
  const double number = value.number();
  if (method == "common") {
    if (value.is_whole()) return Value::of(value.whole());
    char text[512];  // rounded from all of its digits, which printf knows
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(digits), number);
    return Value::of(std::strtod(text, nullptr));
  }
  if (method != "ceil" && method != "floor") meter.fail("round: the method is unknown");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  return Value::of((method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) /
                   scale);
}

Value sum(Meter& meter, const Value& value, const Arguments& arguments) {
  const Parameters parameters(meter, "sum", arguments, {"attribute", "start"});
  Value total = parameters.at(1) != nullptr ? *parameters.at(1) : Value::of(std::int64_t{0});
  const Value* path = parameters.at(0);
  if (total.text() != nullptr) meter.fail("sum: strings are joined, not summed");
  for (const Value& element : elements_of(meter, value)) {
    const bool whole = path == nullptr || path->is_none();
    total = apply(meter, Operator::add, total, whole ? element : path_of(meter, element, *path));
  }
  return total;
}

}  // namespace

Filter find_number_filter(std::string_view name) noexcept {
  if (name == "int") return to_int;
  if (name == "float") return to_float;
  if (name == "abs") return absolute;
  if (name == "round") return round_number;
  return name == "sum" ? sum : nullptr;
}

}  // namespace kvtier::jinja
