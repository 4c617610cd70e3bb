#include "daemon/cache/tiers/memory_tiers.h"

#include <utility>

#include "core/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

MemoryTiers::MemoryTiers(const Options& options, Ports ports, const Tenants& tenants)
    : next_number_(std::move(ports.next_extent)),
      host_(
          Tier::host, options.host, ports.host, [this] { return next_extent(0); }, 0, &tenants) {
  KVTIER_CHECK(ports.devices.size() <= limits::kGpusMax);
  const auto of_device = ports.devices.empty() ? MemoryTier::Options{} : options.device;
  if (ports.devices.empty()) ports.devices.push_back(nullptr);
  for (std::uint32_t device = 0; device < ports.devices.size(); ++device) {
    devices_.push_back(std::make_unique<MemoryTier>(
        Tier::device, of_device, ports.devices[device],
        [this, device] { return next_extent(device); }, device, &tenants));
  }
}

ExtentId MemoryTiers::next_extent(std::uint32_t device) {
  const std::uint32_t number = next_number_ ? next_number_() : next_extent_++;
  KVTIER_CHECK(number < 1U << limits::kExtentBits);
  return ExtentId(device << limits::kExtentBits | number);
}

}  // namespace kvtier::daemon
