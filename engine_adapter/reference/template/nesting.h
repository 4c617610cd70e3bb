// How deep a rendering is: statements, expressions and calls under way, each a few frames of the
// stack. One rendering's, on one thread.
#pragma once

#include "engine_adapter/reference/template/value/limits.h"
#include "engine_adapter/reference/template/value/meter.h"

namespace kvtier::jinja {

class Nesting {
 public:
  // `meter` outlives it.
  explicit Nesting(const Meter& meter) : meter_(meter) {}

  // One more for as long as it lives. Throws Fault beyond the bound.
  class Deeper {
   public:
    explicit Deeper(Nesting& nesting) : depth_(nesting.depth_) {
      if (++depth_ > kEvaluationDepthMax) nesting.meter_.fail("nested too deeply");
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

 private:
  const Meter& meter_;
  int depth_ = 0;
};

}  // namespace kvtier::jinja
