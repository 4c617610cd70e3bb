#include "engine_adapter/reference/template/scopes.h"

namespace kvtier::jinja {

void Scopes::renew() {
  if (stack_.back().use_count() > 1) {
    stack_.back() = std::make_shared<Map>();
  } else {
    stack_.back()->clear();
  }
}

const Value* Scopes::find(std::string_view name) const noexcept {
  for (auto scope = stack_.rbegin(); scope != stack_.rend(); ++scope) {
    if (const Value* found = (*scope)->find(name)) return found;
  }
  return variables_.find(name);
}

}  // namespace kvtier::jinja
