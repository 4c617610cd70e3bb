// str.format() and the operator % of strings.
#include <cstdio>

#include "engine_adapter/reference/template/value/unicode.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

constexpr std::size_t kWidthMax = 1000;

struct Spec {
  std::string flags;
  std::size_t width = 0;
  std::string precision;  // ".2", or nothing
  char kind = '\0';
};

std::size_t read_number(const std::string& text, std::size_t& at) {
  std::size_t number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9' && number <= kWidthMax) {
    number = number * 10 + static_cast<std::size_t>(text[at++] - '0');
  }
  return number;
}

void append_padded(std::string& out, const std::string& text, const Spec& spec) {
  const std::size_t size = count_characters(text);
  const std::string pad(spec.width > size ? spec.width - size : 0, ' ');
  const bool left = spec.flags.find('-') != std::string::npos;
  out += left ? text + pad : pad + text;
}

// With C's printf, whose numbers look as Python's.
void append_number(Meter& meter, std::string& out, const Value& value, const Spec& spec) {
  if (!value.is_number()) {
    meter.fail(std::string("%") + spec.kind + " wants a number, not " + value.type_name());
  }
  char text[2048];
  std::string format = "%" + spec.flags + std::to_string(spec.width) + spec.precision;
  if (spec.width == 0) format = "%" + spec.flags + spec.precision;
  int size = 0;
  if (std::string_view("dixXo").find(spec.kind) != std::string_view::npos) {
    const bool decimal = spec.kind == 'd' || spec.kind == 'i';
    if (!decimal && !value.is_whole()) meter.fail("a format wants a whole number");
    format += std::string("ll") + spec.kind;
    const long long number =
        value.is_whole() ? value.whole() : static_cast<long long>(value.number());
    if (!value.is_whole() && !(value.number() > -9e18 && value.number() < 9e18)) {
      meter.fail("a number is beyond 64 bits");
    }
    size = std::snprintf(text, sizeof text, format.c_str(), number);
  } else {
    format += spec.kind;
    size = std::snprintf(text, sizeof text, format.c_str(), value.number());
  }
  if (size < 0 || static_cast<std::size_t>(size) >= sizeof text) meter.fail("a format is too wide");
  out.append(text, static_cast<std::size_t>(size));
}

Spec read_spec(Meter& meter, const std::string& format, std::size_t& at) {
  Spec spec;
  while (at < format.size() &&
         std::string_view("-+ 0#").find(format[at]) != std::string_view::npos) {
    if (spec.flags.size() < 8) spec.flags += format[at];
    ++at;
  }
  spec.width = read_number(format, at);
  if (at < format.size() && format[at] == '.') {
    ++at;
    const std::size_t digits = read_number(format, at);
    if (digits > 100) meter.fail("a format is too precise");
    spec.precision = "." + std::to_string(digits);
  }
  if (spec.width > kWidthMax) meter.fail("a format is too wide");
  if (at >= format.size()) meter.fail("a format has no end");
  spec.kind = format[at++];
  return spec;
}

}  // namespace

std::string percent_format(Meter& meter, const std::string& format, const List& arguments,
                           const Map* named) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < format.size();) {
    if (format[at] != '%') {
      out += format[at++];
      continue;
    }
    ++at;
    const Value* value = nullptr;
    if (at < format.size() && format[at] == '(') {
      const std::size_t end = format.find(')', at);
      if (named == nullptr || end == std::string::npos) meter.fail("a format wants a mapping");
      value = named->find(std::string_view(format).substr(at + 1, end - at - 1));
      if (value == nullptr) meter.fail("a format's key is missing");
      at = end + 1;
    }
    const Spec spec = read_spec(meter, format, at);
    if (spec.kind == '%') {
      out += '%';
      continue;
    }
    if (value == nullptr) {
      if (next >= arguments.size()) meter.fail("not enough arguments for a format");
      value = &arguments[next++];
    }
    meter.step();
    meter.make(spec.width);
    if (spec.kind == 's' || spec.kind == 'r') {
      std::string text = spec.kind == 's' ? str_of(meter, *value) : repr_of(meter, *value);
      if (!spec.precision.empty())
        text.resize(offset_of(text, std::stoul(spec.precision.substr(1))));
      append_padded(out, text, spec);
    } else if (std::string_view("dixXofFeEgG").find(spec.kind) != std::string_view::npos) {
      append_number(meter, out, *value, spec);
    } else {
      meter.fail(std::string("the format %") + spec.kind + " is not supported");
    }
  }
  if (named == nullptr && next < arguments.size()) meter.fail("not all arguments were formatted");
  meter.make(out.size());
  return out;
}

std::string brace_format(Meter& meter, const std::string& format, const List& arguments,
                         const Map& named) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (at + 1 < format.size() && format[at + 1] == c) {
      out += c;
      ++at;
      continue;
    }
    const std::size_t end = format.find('}', at);
    if (c == '}' || end == std::string::npos)
      meter.fail("format: a single '" + std::string(1, c) + "'");
    const std::string field = format.substr(at + 1, end - at - 1);
    at = end;
    const Value* value = named.find(field);
    if (field.find_first_not_of("0123456789") == std::string::npos && field.size() < 6) {
      const std::size_t index = field.empty() ? next++ : std::stoul(field);
      value = index < arguments.size() ? &arguments[index] : nullptr;
    }
    if (value == nullptr) {
      meter.fail("format: '{" + field +
                 "}' is not given or not supported; supported are {}, {0} and {name}");
    }
    meter.step();
    out += str_of(meter, *value);
  }
  meter.make(out.size());
  return out;
}

}  // namespace kvtier::jinja
