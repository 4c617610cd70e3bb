// What one template and one rendering may take.
#pragma once

#include <chrono>
#include <cstddef>

namespace kvtier::jinja {

inline constexpr std::size_t kSourceBytesMax = 1U << 20U;
inline constexpr int kNestingMax = 100;            // of statements and brackets in a source
inline constexpr int kExpressionDepthMax = 200;    // of an expression's tree: a + b + c + ...
inline constexpr int kValueDepthMax = 100;         // of lists and mappings in each other
inline constexpr int kEvaluationDepthMax = 400;    // statements, expressions and macros under way
inline constexpr std::size_t kRangeMax = 100'000;  // jinja2's sandbox has this one

// Everything nested is destroyed, compared and written recursively: these keep that within a stack.
static_assert(kNestingMax <= kExpressionDepthMax && kExpressionDepthMax < kEvaluationDepthMax);

struct RenderLimits {
  std::size_t steps = 2'000'000;                // statements, expressions, elements looked at
  std::size_t made_bytes = 256U << 20U;         // strings, lists and mappings, whether freed or not
  std::size_t output_bytes = 64U << 20U;        // of the text
  std::chrono::milliseconds thread_time{1000};  // the processor's, not the clock's
};

}  // namespace kvtier::jinja
