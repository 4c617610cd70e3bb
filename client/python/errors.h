// Results as exceptions: kvtier.KvtierError and its like (kvtier/_errors.py).
#pragma once

#include <utility>

#include "kvtier/result.h"

namespace kvtier::python {

// Becomes the exception of its code where it leaves a function of the module.
struct Raised {
  Error error;
};

template <class T>
T value(Result<T> result) {
  if (!result) throw Raised{std::move(result).error()};
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// Once, by the module.
void register_errors();

}  // namespace kvtier::python
