// The variables that a place of a template sees: what the template was given, and above it the
// scopes around the place, the innermost last. One rendering's, on one thread.
//
// Scopes are shared: a macro sees those around its definition, whatever is set in them later, so
// one that a closure sees is never cleared.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine_adapter/reference/template/value/value.h"

namespace kvtier::jinja {

class Scopes {
 public:
  using Stack = std::vector<std::shared_ptr<Map>>;

  // `variables`, which the template was given, outlives it.
  explicit Scopes(const Map& variables) : variables_(variables) { push(); }
  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;

  Map& innermost() noexcept { return *stack_.back(); }
  void push() { push(std::make_shared<Map>()); }
  void push(std::shared_ptr<Map> scope) { stack_.push_back(std::move(scope)); }
  void pop() { stack_.pop_back(); }
  // The innermost is empty again.
  void renew();
  // Null: there is none of that name.
  const Value* find(std::string_view name) const noexcept;

  // What a closure that is made here keeps.
  const Stack& stack() const noexcept { return stack_; }
  std::size_t bytes() const noexcept { return stack_.size() * sizeof(stack_[0]); }
  // Goes to where a closure was made; gives back what was seen before.
  Stack exchange(Stack stack) { return std::exchange(stack_, std::move(stack)); }

 private:
  const Map& variables_;
  Stack stack_;
};

}  // namespace kvtier::jinja
