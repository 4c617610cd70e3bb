// How long computing takes, as the cost model learns it. A model that computes behind the host's
// back is measured over all steps up to a wait, or to where it has come to the end of them. Owned
// by the steps.
//
// Invariant: between the first of the steps that are not measured yet and the moment when they are,
// the model always has something to compute.
//
// One thread: the engine's.
#pragma once

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/prefix/cost_model.h"

namespace kvtier::engine {

class StepTimes {
 public:
  // Both outlive it.
  StepTimes(Model& model, CostModel& costs) : model_(model), costs_(costs) {}
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;

  // A step has been computed (`waited`), or is being computed. Waits for it once in an engine's
  // life: until then nobody knows whether to load or to compute.
  void note(const StepWork& step, bool waited, Clock::time_point begun);
  // A step waited for something else than computing: it says nothing, nor do those before it.
  void forget() noexcept { unmeasured_ = {}; }
  // There is nothing to compute: what comes now is no time of computing.
  void note_idle();

 private:
  void measure();

  Model& model_;
  CostModel& costs_;
  // Steps since the model was last waited for.
  StepWork unmeasured_;
  Clock::time_point since_{};
};

}  // namespace kvtier::engine
