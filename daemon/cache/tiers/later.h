// How what takes long is done in steps: a task is run in a later turn of the control thread. Where
// it is not set there are no turns, and all steps are taken at once.
#pragma once

#include <functional>

namespace kvtier::daemon {

using Later = std::function<void(std::function<void()>)>;

}  // namespace kvtier::daemon
