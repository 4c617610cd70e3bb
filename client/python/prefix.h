// kvtier.Prefix.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "kvtier/prefix.h"

namespace kvtier::python {

// A Prefix is not for two threads at a time, and calls that read one run without Python's lock:
// they hold the value as it was, and whoever changes it then makes a copy first.
class PrefixHandle {
 public:
  explicit PrefixHandle(Prefix prefix) : value_(std::make_shared<Prefix>(std::move(prefix))) {}

  std::shared_ptr<const Prefix> read() const noexcept { return value_; }
  Prefix& change() {
    if (value_.use_count() > 1) value_ = std::make_shared<Prefix>(*value_);
    return *value_;
  }

 private:
  std::shared_ptr<Prefix> value_;  // under Python's lock
};

}  // namespace kvtier::python
