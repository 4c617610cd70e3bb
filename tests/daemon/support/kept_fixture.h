// A daemon under a manager that keeps its descriptors, so that memory outlives it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <optional>

#include "storage/memory/slot_table.h"
#include "tests/daemon/support/kvtierd_process.h"
#include "tests/daemon/support/service_manager.h"
#include "tests/daemon/support/wire_client.h"

namespace kvtier::daemon::testing {

struct KeptSizes {
  std::string host = "'4MiB'", device = "'2MiB'", extent = "'1MiB'";
  std::string gpus = "[0]";
  std::uint32_t blocks_max = 4096;
  std::string more = {};
};

class KeptDaemon {
 public:
  void start(const KeptSizes& sizes = {}) {
    const std::string config =
        "socket = '" + socket() + "'\n" +
        "[index]\nblocks_max = " + std::to_string(sizes.blocks_max) +
        "\n[host]\ncapacity = " + sizes.host + "\nextent_size = " + sizes.extent +
        "\nhuge_pages = false\n[device]\ncapacity = " + sizes.device +
        "\nextent_size = " + sizes.extent + "\ngpus = " + sizes.gpus + "\n" + sizes.more;
    process_.emplace(scratch, config, "", &manager);
  }
  void kill() {
    process_->signal(SIGKILL);
    process_->wait();
    manager.settle();
  }
  void stop() {
    process_->signal(SIGTERM);
    const int status = process_->wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << process_->output();
    manager.settle();
  }
  void kill_and_start(const KeptSizes& sizes = {}) {
    kill();
    start(sizes);
  }
  Kvtierd& process() { return *process_; }
  bool said(const std::string& text) const {
    return process_->output().find(text) != std::string::npos;
  }
  std::string socket() const { return (scratch / "s").string(); }
  WireClient client() const { return WireClient::greeted(socket()); }

  // Slots in this state in all kept extents, as their slot tables say.
  std::uint64_t slots(storage::SlotState state) {
    std::uint64_t found = 0;
    for (const std::string& name : manager.names("slots-")) {
      const auto table = storage::SlotTable::adopt(UniqueFd(::dup(manager.fd(name))));
      if (!table) continue;
      for (std::uint32_t slot = 0; slot < table->header().slots; ++slot)
        found += table->entry(slot).state == state ? 1 : 0;
    }
    return found;
  }

  Scratch scratch;
  ServiceManager manager;

 private:
  std::optional<Kvtierd> process_;
};

struct MemoryStatus {
  std::uint64_t blocks[3]{}, bytes[3]{}, taken_bytes[3]{}, cap_bytes[3]{}, hits[3]{};
  std::uint64_t quarantined = 0, reserved = 0, index = 0;
};

inline MemoryStatus memory_status(WireClient& client) {
  MemoryStatus found;
  EXPECT_TRUE(client.request([](WireClient::Builder m) { m.setStatus(); },
                             [&](WireClient::Reader m) {
                               const auto status = m.getStatusReply();
                               for (const auto tier : status.getTiers()) {
                                 const auto t = tier.getTier();
                                 found.blocks[t] = tier.getBlocks();
                                 found.bytes[t] = tier.getUsedBytes();
                                 found.taken_bytes[t] = tier.getTakenBytes();
                                 found.cap_bytes[t] = tier.getCapBytes();
                                 found.hits[t] = tier.getHits();
                               }
                               found.quarantined = status.getQuarantinedSlots();
                               found.reserved = status.getReservedSlots();
                               found.index = status.getBlocks();
                             }));
  return found;
}

// How many leading blocks of the prefix are served with the right bytes; a wrong one fails the
// test.
inline std::size_t right_blocks(WireClient& client, const Namespace& of,
                                std::span<const TestBlock> prefix) {
  const auto seen = client.look(client.open(of), of, prefix);
  std::size_t right = 0;
  for (const auto block : seen) {
    EXPECT_NE(block, WireClient::Seen::wrong);
    right += block == WireClient::Seen::right ? 1 : 0;
  }
  // A lease is answered before its use is noted; what is asked next is answered behind that.
  EXPECT_TRUE(client.status().has_value());
  return right;
}

}  // namespace kvtier::daemon::testing
