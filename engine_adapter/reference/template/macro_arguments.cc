#include "engine_adapter/reference/template/macro_arguments.h"

#include <algorithm>

namespace kvtier::jinja {
namespace {

const Value* named_argument(const Arguments& arguments, std::string_view name) {
  for (const auto& [key, value] : arguments.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool has_parameter(const Statement& macro, std::string_view name) {
  return std::ranges::any_of(macro.parameters,
                             [name](const auto& one) { return one.name == name; });
}

void bind_parameters(Meter& meter, Evaluator& evaluator, const Statement& macro,
                     const Arguments& arguments, Map& scope) {
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const Value* given = named_argument(arguments, parameter.name);
    if (i < arguments.plain.size()) {
      if (given != nullptr) {
        meter.fail("'" + macro.text + "' is given '" + parameter.name + "' twice");
      }
      given = &arguments.plain[i];
    }
    if (given != nullptr) {
      scope.set(parameter.name, *given);
    } else if (parameter.otherwise) {
      scope.set(parameter.name, evaluator.evaluate(*parameter.otherwise));
    } else {
      scope.set(parameter.name, Value::undefined(parameter.name));
    }
  }
}

// What is beyond its parameters: varargs, kwargs and caller.
void bind_more(Meter& meter, const Statement& macro, const Arguments& arguments, Map& scope) {
  List more;
  for (std::size_t i = macro.parameters.size(); i < arguments.plain.size(); ++i) {
    more.push_back(arguments.plain[i]);
  }
  if (!more.empty() && !macro.takes_more) {
    meter.fail("the macro '" + macro.text + "' takes at most " +
               std::to_string(macro.parameters.size()) + " arguments");
  }
  if (!has_parameter(macro, "caller")) scope.set("caller", Value::undefined("caller"));
  Map named;
  for (const auto& [name, value] : arguments.named) {
    if (has_parameter(macro, name)) continue;
    if (name == "caller") {
      scope.set(name, value);
    } else if (macro.takes_named) {
      named.set(name, value);
    } else {
      meter.fail("the macro '" + macro.text + "' has no parameter '" + name + "'");
    }
  }
  if (macro.takes_more) {
    scope.set("varargs", make_sequence(meter, std::move(more), Sequence::Kind::tuple));
  }
  if (macro.takes_named) scope.set("kwargs", make_map(meter, std::move(named)));
}

}  // namespace

void bind_arguments(Meter& meter, Evaluator& evaluator, const Statement& macro,
                    const Arguments& arguments, Map& scope) {
  bind_parameters(meter, evaluator, macro, arguments, scope);
  bind_more(meter, macro, arguments, scope);
}

}  // namespace kvtier::jinja
