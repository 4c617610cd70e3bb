// kvtierd with what tests want to go wrong inside it, said in its environment: KVTIER_KILL_AT
// (kill_at.h) and KVTIER_DISK_STANDS (tests/storage/faults/standing_device.h). All else is the
// kvtierd that is shipped.
#include <cstdio>
#include <utility>

#include "daemon/run_kvtierd.h"
#include "tests/daemon/support/kill_at.h"
#include "tests/storage/faults/standing_device.h"

int main(int argc, char** argv) {
  using namespace kvtier;
  if (const auto armed = daemon::testing::arm_kill_from_environment(); !armed) {
    std::fprintf(stderr, "kvtierd: %s\n", armed.error().message.c_str());
    return 2;
  }
  daemon::KvtierdHooks hooks;
  if (const auto stands = storage::standstill_from_environment()) {
    hooks.wrap_device = [stands](std::unique_ptr<storage::BlockDevice> inner) {
      return storage::make_standing_device(std::move(inner), stands);
    };
  }
  return daemon::run_kvtierd(argc, argv, hooks);
}
