// What a macro sees of its call.
#pragma once

#include "engine_adapter/reference/template/evaluator.h"

namespace kvtier::jinja {

// Sets in `scope`, which is the innermost, the parameters of `macro`, and varargs, kwargs and
// caller where it reads them. What is not given is computed there, one after the other. Throws
// Fault.
void bind_arguments(Meter& meter, Evaluator& evaluator, const Statement& macro,
                    const Arguments& arguments, Map& scope);

}  // namespace kvtier::jinja
