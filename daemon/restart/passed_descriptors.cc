#include "daemon/restart/passed_descriptors.h"

#include <systemd/sd-daemon.h>

#include <cstdlib>
#include <utility>

namespace kvtier::daemon {

Result<PassedDescriptors> PassedDescriptors::from_environment() {
  PassedDescriptors passed;
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  if (count < 0) return errno_error(Errc::io, "LISTEN_FDS is not understood", -count);
  for (int i = 0; i < count; ++i) {
    passed.by_name_[names[i]].emplace_back(SD_LISTEN_FDS_START + i);
    std::free(names[i]);
  }
  std::free(names);
  return passed;
}

std::vector<UniqueFd> PassedDescriptors::take(const std::string& name) {
  auto node = by_name_.extract(name);
  return node.empty() ? std::vector<UniqueFd>{} : std::move(node.mapped());
}

std::vector<std::string> PassedDescriptors::names(std::string_view prefix) const {
  std::vector<std::string> found;
  for (const auto& [name, descriptors] : by_name_) {
    if (name.starts_with(prefix)) found.push_back(name);
  }
  return found;
}

}  // namespace kvtier::daemon
