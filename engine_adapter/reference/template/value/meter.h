// Counts what a rendering does against its limits, and knows the line it is at. One rendering's, on
// one thread.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "engine_adapter/reference/template/value/limits.h"

namespace kvtier::jinja {

// What is wrong with a template, or what it goes beyond; caught in Template.
struct Fault : std::runtime_error {
  Fault(int at, const std::string& message) : std::runtime_error(message), line(at) {}
  int line;
};

// raise_exception(): the template's own refusal of what it is given.
struct Raised : Fault {
  using Fault::Fault;
};

class Meter {
 public:
  explicit Meter(const RenderLimits& limits);

  // All throw Fault where a limit is passed.
  void step(std::size_t steps = 1) {
    steps_ += steps;
    looked_ += 64 * steps;
    if (steps_ > limits_.steps) too_many_steps();
    if (looked_ >= kLookedBetweenChecks) check_time();
  }
  // Called before the bytes are allocated.
  void make(std::size_t bytes) {
    if (bytes > limits_.made_bytes - made_) too_much_made();
    made_ += bytes;
    look(bytes);
  }
  // Bytes are searched or compared.
  void look(std::size_t bytes) {
    looked_ += bytes;
    if (looked_ >= kLookedBetweenChecks) check_time();
  }
  void put(std::size_t bytes);

  [[noreturn]] void fail(const std::string& message) const { throw Fault(line, message); }

  int line = 1;

 private:
  static constexpr std::size_t kLookedBetweenChecks = 1U << 18U;

  [[noreturn]] void too_many_steps() const;
  [[noreturn]] void too_much_made() const;
  void check_time();

  const RenderLimits limits_;
  const std::int64_t end_ns_;
  std::size_t steps_ = 0;
  std::size_t made_ = 0;
  std::size_t put_ = 0;
  std::size_t looked_ = 0;
};

}  // namespace kvtier::jinja
