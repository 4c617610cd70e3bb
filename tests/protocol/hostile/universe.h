// Who takes part: users, tenants, namespaces and prompts, the same in every process of a run.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvtier/namespace.h"
#include "tests/daemon/support/records.h"
#include "tests/protocol/hostile/random.h"

namespace kvtier::protocol {

using daemon::testing::TestBlock;

// Users by number: nobody has to know them.
inline constexpr uid_t kRoot = 0;
inline constexpr uid_t kWriter = 61001;
inline constexpr uid_t kOtherWriter = 61002;
inline constexpr uid_t kReader = 61003;  // in read_only_users
inline constexpr uid_t kApart = 61004;   // of the isolated tenant, and of no other
inline constexpr uid_t kHonest = 61005;
inline constexpr uid_t kProbe = 61006;

// Pools of extents, as the daemon keeps them apart.
inline constexpr std::uint8_t kNoPool = 0, kSharedPool = 1, kApartPool = 2;  // 0: not known

// One that hostile clients open.
struct KnownNamespace {
  Namespace ns;
  NamespaceId id;
  RecordLayout layout;
  std::string encoded;
  uid_t only = kRoot;  // whose it is; root: everybody's
};

class Universe {
 public:
  Universe();

  const std::vector<KnownNamespace>& namespaces() const noexcept { return namespaces_; }
  // One that this user may open, mostly.
  std::size_t pick(Random& random, uid_t user) const;
  // The first blocks of one of the prompts that all clients share.
  std::vector<TestBlock> prompt(Random& random, std::size_t ns) const;
  // Of a namespace that nobody has opened, perhaps one that cannot be.
  std::string odd_namespace(Random& random) const;

 private:
  std::vector<KnownNamespace> namespaces_;
};

inline constexpr std::uint32_t kPromptBlocksMax = 24;

// How one daemon of a run is set up.
struct Setting {
  std::string name;
  std::uint32_t disks = 0;
  std::string disk_io = "uring";
  std::string admission = "all";
  std::uint32_t descriptors_max = 0;  // RLIMIT_NOFILE; 0: as it is
  std::uint32_t requests_per_second = 2'000'000;
  std::uint32_t blocks_max = 8192;
  std::uint64_t host_mib = 96, device_mib = 16;
  bool restarts = false;  // killed half way, and started again with its memory
};
std::vector<Setting> settings();

// What changes while a daemon runs.
struct Reloadable {
  std::uint64_t host_mib, device_mib;
  std::uint32_t small_quota_mib = 2;
  std::uint32_t scrub_mib_per_s = 16;
  std::string admission;
};
std::string config_text(const Setting& setting, const Reloadable& now, const std::string& folder,
                        std::uint16_t http_port);

Namespace honest_namespace(bool large);

}  // namespace kvtier::protocol
