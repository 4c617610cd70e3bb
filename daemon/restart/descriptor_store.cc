#include "daemon/restart/descriptor_store.h"

#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace kvtier::daemon {

bool DescriptorStore::present() const noexcept {
  const char* socket = std::getenv("NOTIFY_SOCKET");
  return socket != nullptr && *socket != '\0';
}

void DescriptorStore::put(const std::string& name, int fd) {
  if (!present()) return;
  // Memory has no end that the manager could wait for.
  const std::string state = "FDSTORE=1\nFDPOLL=0\nFDNAME=" + name;
  const int sent = ::sd_pid_notify_with_fds(0, 0, state.c_str(), &fd, 1);
  if (sent < 0) return note_failure(-sent);
  ++kept_;
  note_room();
}

void DescriptorStore::remove(const std::string& name) {
  if (!present()) return;
  const std::string state = "FDSTOREREMOVE=1\nFDNAME=" + name;
  const int sent = ::sd_notify(0, state.c_str());
  if (sent < 0) return note_failure(-sent);
  if (kept_ > 0) --kept_;
}

void DescriptorStore::note_failure(int error) {
  if (std::exchange(failure_noted_, true)) return;
  spdlog::warn("the service manager keeps no descriptors, so memory ends with this daemon: {}",
               std::strerror(error));
}

// systemd says how much it keeps from version 254 on; what is too much it drops without a word.
void DescriptorStore::note_room() {
  const char* most = std::getenv("FDSTORE");
  if (most == nullptr || kept_ <= std::strtoull(most, nullptr, 10)) return;
  if (std::exchange(room_noted_, true)) return;
  spdlog::warn(
      "the service manager keeps {} descriptors at most, so memory beyond them ends with "
      "this daemon: raise FileDescriptorStoreMax= in the unit, or extent_size",
      most);
}

}  // namespace kvtier::daemon
