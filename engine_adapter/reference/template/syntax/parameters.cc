#include "engine_adapter/reference/template/builtins/builtins.h"
#include "engine_adapter/reference/template/value/operators.h"

namespace kvtier::jinja {

Parameters::Parameters(Meter& meter, std::string_view callee, const Arguments& arguments,
                       std::initializer_list<std::string_view> names)
    : meter_(meter), callee_(callee) {
  const std::string title(callee);
  if (arguments.plain.size() > names.size()) {
    meter.fail("'" + title + "' takes at most " + std::to_string(names.size()) + " arguments");
  }
  for (std::size_t i = 0; i < arguments.plain.size(); ++i) found_[i] = &arguments.plain[i];
  for (const auto& [name, value] : arguments.named) {
    std::size_t i = 0;
    while (i < names.size() && names.begin()[i] != name) ++i;
    if (i == names.size()) meter.fail("'" + title + "' has no argument '" + name + "'");
    if (found_[i] != nullptr) meter.fail("'" + title + "' is given '" + name + "' twice");
    found_[i] = &value;
  }
}

const Value& Parameters::needed(std::size_t i) const {
  if (found_[i] == nullptr) meter_.fail("'" + std::string(callee_) + "' lacks an argument");
  return *found_[i];
}

const std::string* Parameters::text(std::size_t i) const {
  if (found_[i] == nullptr || found_[i]->is_none()) return nullptr;
  return &needed_text(i);
}

const std::string& Parameters::needed_text(std::size_t i) const {
  const Value& value = needed(i);
  if (value.is_undefined()) fail_undefined(meter_, value);
  if (value.text() == nullptr) {
    meter_.fail("'" + std::string(callee_) + "' wants a string, not " + value.type_name());
  }
  return *value.text();
}

std::int64_t Parameters::whole(std::size_t i, std::int64_t otherwise) const {
  if (found_[i] == nullptr || found_[i]->is_none()) return otherwise;
  if (!found_[i]->is_whole()) {
    meter_.fail("'" + std::string(callee_) + "' wants a whole number, not " +
                found_[i]->type_name());
  }
  return found_[i]->whole();
}

bool Parameters::flag(std::size_t i, bool otherwise) const {
  return found_[i] != nullptr ? found_[i]->truthy() : otherwise;
}

}  // namespace kvtier::jinja
