// The memory of the tiers over the daemon's restarts: every extent's two descriptors and the
// daemon's own state are in the service manager's store from before anybody is told of them until
// they are forgotten, and are taken back from it at the start. Without a manager all of this keeps
// nothing and changes nothing. Lives on the control thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/config/tenants.h"
#include "daemon/restart/descriptor_store.h"
#include "daemon/restart/kept_state.h"
#include "daemon/restart/passed_descriptors.h"
#include "storage/memory/extent.h"

namespace kvtier::daemon {

class KeptMemory {
 public:
  // What the configuration has room for.
  struct Room {
    std::uint64_t host_bytes = 0;
    std::uint64_t device_bytes = 0;  // of each GPU
    struct Gpu {
      GpuUuid uuid{};
      int number = 0;     // as the driver counts
      bool cuda = false;  // not emulated in host memory
    };
    std::vector<Gpu> gpus;             // by their numbers in this daemon
    const Tenants* tenants = nullptr;  // null: there is only one
  };

  // Takes back what an earlier daemon left. What cannot be used is discarded, each with a line in
  // the log; of more than there is room for, the extents that were used longest ago. Once. Errors:
  // refused (that daemon still runs), io, no_space.
  Result<std::vector<std::unique_ptr<storage::Extent>>> take(PassedDescriptors& passed,
                                                             const Room& room);
  // The encoding of a namespace that the earlier daemon knew; empty where it did not.
  std::span<const std::byte> encoding(const NamespaceId& id) const;
  // The blocks of the extents and their namespaces have been taken over: from now on this daemon's
  // state is the one to be found.
  void taken();

  const Lineage& lineage() const noexcept { return state_->lineage(); }
  std::uint32_t next_extent() noexcept { return state_->next_extent(); }
  void created(const storage::Extent& extent);
  void retired(const storage::Extent& extent);
  void remember(std::span<const std::byte> encoded);
  // What is still to be remembered; asked when there is no room for more, to begin anew with it.
  std::function<std::vector<std::span<const std::byte>>()> live;

 private:
  using Extents = std::vector<std::unique_ptr<storage::Extent>>;
  Result<void> take_state(PassedDescriptors& passed);
  std::unique_ptr<storage::Extent> take_extent(PassedDescriptors& passed, const std::string& number,
                                               const Room& room);
  void keep_what_fits(Extents& extents, const Room& room);
  void discard(const std::string& number, const std::string& why);
  bool begin_anew();

  DescriptorStore store_;
  KeptState::Left left_;
  std::vector<std::string> old_states_;  // names
  std::optional<KeptState> state_;
  bool full_noted_ = false;
};

}  // namespace kvtier::daemon
