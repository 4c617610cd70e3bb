#include "engine_adapter/reference/template/builtins/functions.h"

#include <ctime>
#include <utility>

#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {
namespace {

constexpr std::string_view kFunctions[] = {"raise_exception", "namespace", "range", "dict",
                                           "strftime_now"};

}  // namespace

Functions::~Functions() {
  for (const auto& space : namespaces_) space->attributes.clear();
}

Value Functions::find(const std::string& name) const {
  for (const std::string_view known : kFunctions) {
    if (known != name) continue;
    return Value(Value::Any(std::make_shared<const Callable>(
        Callable{.kind = Callable::Kind::function, .name = name})));
  }
  if (name == "cycler" || name == "joiner" || name == "lipsum") {
    meter_.fail("the function '" + name +
                "' is not supported; supported are raise_exception, namespace, range, dict and "
                "strftime_now");
  }
  return Value::undefined(name);
}

Value Functions::call(const std::string& name, const Arguments& arguments) {
  if (name == "namespace") return make_namespace(arguments);
  if (name == "range") return make_range(arguments);
  if (name == "strftime_now") return format_now(arguments);
  if (name == "raise_exception") {
    const Parameters parameters(meter_, name, arguments, {"message"});
    throw Raised(meter_.line, str_of(meter_, parameters.needed(0)));
  }
  return make_dict(arguments);
}

Value Functions::make_dict(const Arguments& arguments) {
  Map map;
  if (!arguments.plain.empty()) {
    if (arguments.plain.size() > 1 || arguments.plain[0].map() == nullptr) {
      meter_.fail("dict is supported of one mapping only");
    }
    map = *arguments.plain[0].map();
  }
  for (const auto& [key, value] : arguments.named) map.set(key, value);
  return make_map(meter_, std::move(map));
}

Value Functions::make_namespace(const Arguments& arguments) {
  auto made = std::make_shared<Namespace>();
  if (arguments.plain.size() > 1) meter_.fail("namespace takes at most one mapping");
  if (!arguments.plain.empty()) {
    if (arguments.plain[0].map() == nullptr) meter_.fail("namespace is supported of mappings only");
    made->attributes = *arguments.plain[0].map();
  }
  for (const auto& [key, value] : arguments.named) made->attributes.set(key, value);
  meter_.make(sizeof(Namespace) + made->attributes.entries().size() * 4 * sizeof(Value));
  namespaces_.push_back(made);
  return Value(Value::Any(std::move(made)));
}

Value Functions::make_range(const Arguments& arguments) {
  const Parameters parameters(meter_, "range", arguments, {"/start", "/stop", "/step"});
  for (std::size_t i = 0; i < arguments.plain.size(); ++i) {
    if (!arguments.plain[i].is_whole()) meter_.fail("range wants whole numbers");
  }
  std::int64_t begin = parameters.needed(0).whole();
  std::int64_t end = parameters.whole(1, 0);
  if (parameters.at(1) == nullptr) end = std::exchange(begin, 0);
  const std::int64_t stride = parameters.whole(2, 1);
  if (stride == 0) meter_.fail("range's step is 0");
  List numbers;
  for (std::int64_t i = begin; stride > 0 ? i < end : i > end;) {
    if (numbers.size() == kRangeMax) {
      meter_.fail("a range of more than " + std::to_string(kRangeMax) + " numbers");
    }
    numbers.push_back(Value::of(i));
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  return make_sequence(meter_, std::move(numbers), Sequence::Kind::range);
}

Value Functions::format_now(const Arguments& arguments) {
  const Parameters parameters(meter_, "strftime_now", arguments, {"format"});
  const std::string& format = parameters.needed_text(0);
  const auto now = static_cast<std::time_t>(now_);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[4096];
  const std::size_t size = std::strftime(text, sizeof text, format.c_str(), &parts);
  if (size == 0 && !format.empty()) meter_.fail("strftime_now: the format is too long, or nothing");
  return make_text(meter_, std::string(text, size));
}

}  // namespace kvtier::jinja
