#include "daemon/restart/passed_descriptors.h"

#include <sys/socket.h>
#include <sys/stat.h>
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

Result<std::optional<UniqueFd>> PassedDescriptors::take_listening_socket() {
  std::optional<UniqueFd> found;
  for (auto& [name, descriptors] : by_name_) {
    for (auto at = descriptors.begin(); at != descriptors.end();) {
      if (::sd_is_socket(at->get(), AF_UNIX, SOCK_STREAM, 1) <= 0) {
        ++at;
        continue;
      }
      if (found) {
        return make_error(Errc::invalid,
                          "the service manager passes several listening sockets: leave one "
                          "ListenStream= in kvtierd.socket");
      }
      found = std::move(*at);
      at = descriptors.erase(at);
    }
  }
  return found;
}

std::uint64_t PassedDescriptors::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, descriptors] : by_name_) {
    for (const UniqueFd& fd : descriptors) {
      struct stat status {};
      if (::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode))
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

std::vector<std::string> PassedDescriptors::names(std::string_view prefix) const {
  std::vector<std::string> found;
  for (const auto& [name, descriptors] : by_name_) {
    if (name.starts_with(prefix)) found.push_back(name);
  }
  return found;
}

}  // namespace kvtier::daemon
