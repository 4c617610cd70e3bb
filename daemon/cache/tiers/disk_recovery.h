// What the disks hold becomes the catalogue's blocks again: at the start, and of a device whose
// store could only be opened later. Owned by the control thread.
//
// At the start all of it is taken over before anybody is served. A device that comes late is taken
// over in steps, newest blocks first, while others are served, and comes online at the end: until
// then nobody knows what it holds, so what was invalidated meanwhile is remembered and forgotten as
// it comes. An entry that cannot be its block (its key is another's, its size is not its
// namespace's, the index is full) is erased from the store. No record is read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cache/catalogue/selection.h"
#include "daemon/cache/tiers/disk_devices.h"

namespace kvtier::daemon {

class DiskRecovery {
 public:
  // All of these outlive this.
  DiskRecovery(Catalogue& catalogue, DiskDevices& devices, const Later& later) noexcept
      : catalogue_(catalogue), devices_(devices), later_(later) {}

  // Makes the namespaces known that the stores know. recover() does it where nobody else has.
  Result<void> open_namespaces();
  // Takes over what the stores' indices hold, oldest first. Returns the newest stamp.
  Result<std::uint64_t> recover();

  // What a store says of its device's health, where that is of a device that is being taken over,
  // or that has come and is taken over from now on. False where it is neither.
  bool takes_health(std::uint32_t number, storage::DiskState state, const std::string& why);
  // The directory of a device whose store could not be opened yet, so that nobody knows what it
  // holds; empty where there is none.
  std::string unknown_directory() const;
  // What such a device holds of these namespaces is forgotten when it comes.
  void invalidated(const NamespaceFilter& filter);

  // Of a device that came late (storage/store/late_store.h): a namespace that it knows, and the
  // newest stamps of its blocks, which are about to be taken over.
  std::function<void(std::span<const std::byte> encoded)> on_late_namespace;
  std::function<void(std::uint64_t stamp)> on_late_stamp;
  // How far recover() is, now and then.
  std::function<void(const std::string& directory, std::uint64_t blocks)> on_recovering;

 private:
  Result<std::uint64_t> take_over_all(std::uint32_t number, std::vector<BlockId>& taken);
  Result<BlockId> take_over(std::uint32_t number, const storage::DiskEntry& entry);
  Result<std::uint16_t> namespace_of(const storage::DiskEntry& entry);
  void begin_late(std::uint32_t number);
  void take_over_late(std::uint32_t number);

  Catalogue& catalogue_;
  DiskDevices& devices_;
  const Later& later_;
  bool namespaces_opened_ = false;
  // The namespace of the last entry and its number: within one step nobody else opens or forgets.
  std::optional<std::pair<NamespaceId, std::uint16_t>> last_;
  // Of devices that came late and whose blocks are being taken over: the store's last word of what
  // can be done with them.
  std::map<std::uint32_t, storage::DiskState> late_;
  std::vector<NamespaceFilter> invalidated_;  // while a device's blocks were not known
};

}  // namespace kvtier::daemon
