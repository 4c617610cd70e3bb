// The service manager's descriptor store: what is put there lives on when this process ends, and
// the next daemon is passed it (PassedDescriptors). Any manager that speaks NOTIFY_SOCKET with
// FDSTORE will do. Lives on the control thread.
#pragma once

#include <cstddef>
#include <string>

#include "core/base/fd.h"

namespace kvtier::daemon {

class DescriptorStore {
 public:
  // Whether there is a manager that may keep something.
  bool present() const noexcept;

  // Has the manager keep a copy of `fd` under `name`, which is no other's. What the manager does
  // with it is not known; a failure to tell it is logged once.
  void put(const std::string& name, int fd);
  void remove(const std::string& name);
  // So many that an earlier daemon put there are there still.
  void note_kept(std::size_t count) noexcept { kept_ += count; }

 private:
  void note_failure(int error);
  void note_room();

  std::size_t kept_ = 0;
  bool failure_noted_ = false;
  bool room_noted_ = false;
};

}  // namespace kvtier::daemon
