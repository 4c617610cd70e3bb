// How the parts of the interpreter report what is wrong with a template; caught in Template.
#pragma once

#include <stdexcept>
#include <string>

namespace kvtier::jinja {

struct Fault : std::runtime_error {
  Fault(int at, const std::string& message) : std::runtime_error(message), line(at) {}
  int line;
};

// raise_exception(): the template's own refusal of what it is given.
struct Raised : Fault {
  using Fault::Fault;
};

}  // namespace kvtier::jinja
