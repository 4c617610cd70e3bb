#include "engine_adapter/reference/scheduler/steps/step_times.h"

namespace kvtier::engine {
namespace {

// Steps of fewer rows are bound by other things than those of prompts, and tell nothing about them.
constexpr double kRowsMin = 32;

}  // namespace

void StepTimes::note(const StepWork& step, bool waited, Clock::time_point begun) {
  if (unmeasured_.steps == 0) since_ = begun;
  unmeasured_ += step;
  if (!waited && (costs_.compute_known() || step.rows < kRowsMin)) return;
  if (!waited) model_.wait();
  measure();
}

void StepTimes::note_idle() {
  if (unmeasured_.steps > 0 && !model_.computing()) measure();
}

void StepTimes::measure() {
  if (unmeasured_.rows >= kRowsMin * unmeasured_.steps) {
    costs_.note_compute(unmeasured_, std::chrono::duration<double>(Clock::now() - since_).count());
  }
  unmeasured_ = {};
}

}  // namespace kvtier::engine
