// What every public handle asks first: whether there is anything behind it that this process may
// touch.
#pragma once

#include <memory>
#include <utility>

#include "core/base/fork_mark.h"

namespace kvtier {

// Null where the handle was moved away, and in a fork of the process that made it.
template <class State>
State* here(const std::shared_ptr<State>& state) noexcept {
  return state && !state->born.forked() ? state.get() : nullptr;
}

// Before the handle lets go of it. False where nothing of it may be touched.
template <class State>
bool may_end(std::shared_ptr<State>& state) noexcept {
  if (here(state) != nullptr) return true;
  if (state) ForkMark::keep(std::move(state));
  return false;
}

}  // namespace kvtier
