#include "client/session/thread/mapped_extents.h"

#include "client/session/limits.h"
#include "client/session/thread/wire_values.h"

namespace kvtier::session {
namespace {

// Extent.kind
constexpr std::uint8_t kMemfd = 0;
constexpr std::uint8_t kCuda = 1;

}  // namespace

void MappedExtents::fill_hello(wire::Hello::Builder hello, bool read_only) {
  if (!gpu_tier_) std::erase_if(extents_, [](const auto& e) { return e.second->on_gpu; });
  if (!extents_.empty()) {
    hello.setLineage(data(lineage_.data(), lineage_.size()));
    hello.setExtentsReadOnly(read_only);
    auto extents = hello.initExtents(static_cast<unsigned>(extents_.size()));
    unsigned i = 0;
    for (const auto& [id, mapping] : extents_) extents.set(i++, id);
  }
  if (gpu_ && gpu_tier_) hello.setGpu(data(gpu_->uuid().data(), sizeof(GpuUuid)));
}

Result<void> MappedExtents::take_welcome(wire::Welcome::Reader welcome) {
  const auto lineage = welcome.getLineage();
  constexpr std::size_t kLineageBytesMax = 64;
  if (lineage.size() > kLineageBytesMax) return malformed("a lineage of the wrong size");
  if (welcome.getExtents().size() > extents_.size())
    return malformed("more extents than were said to be known");
  const auto* first = reinterpret_cast<const std::byte*>(lineage.begin());
  auto before = std::exchange(extents_, {});
  unmapped_.clear();
  for (const std::uint32_t id : welcome.getExtents()) {
    auto known = before.extract(id);
    if (known.empty()) return malformed("an extent as known that is not");
    extents_.insert(std::move(known));
  }
  lineage_.assign(first, first + lineage.size());
  return {};
}

Result<std::shared_ptr<const ExtentMapping>> MappedExtents::mapping_of(wire::Frame& frame,
                                                                       wire::Extent::Reader extent,
                                                                       Mapping::Access access) {
  const auto tier = static_cast<Tier>(extent.getTier());
  const UniqueFd fd = frame.take_descriptor();
  if (extent.getKind() == kCuda && gpu_ && tier == Tier::device) {
    auto mapped = gpu_->map(fd, extent.getBytes(), extent.getSlotBytes());
    if (!mapped) gpu_tier_ = false;
    return mapped;
  }
  if (extent.getKind() != kMemfd) return malformed("memory of a kind that this client cannot map");
  auto mapped = ExtentMapping::map(fd, tier, extent.getBytes(), extent.getSlotBytes(), access);
  if (!mapped) return mapped.error();
  if (gpu_) return gpu_->pin(std::move(*mapped));
  return std::shared_ptr<const ExtentMapping>(std::move(*mapped));
}

Result<void> MappedExtents::map(wire::Frame& frame, wire::Extent::Reader extent,
                                Mapping::Access access) {
  if (extent.getTier() >= index_of(Tier::disk)) return malformed("an extent that is not memory");
  if (extents_.size() + unmapped_.size() >= kExtentsMax) return malformed("too many extents");
  if (extents_.contains(extent.getId()) || unmapped_.contains(extent.getId()))
    return malformed("an extent twice");
  auto mapping = mapping_of(frame, extent, access);
  if (mapping) {
    extents_.emplace(extent.getId(), *mapping);
  } else if (extent.getKind() == kMemfd && mapping.error().code == Errc::io) {
    // No addresses left, or whoever shares the memory has seen to it.
    unmapped_.insert(extent.getId());
  } else {
    return mapping.error();
  }
  return {};
}

void MappedExtents::forget(std::uint32_t extent) {
  extents_.erase(extent);
  unmapped_.erase(extent);
}

SlotRef MappedExtents::Resolver::operator()(std::uint64_t name) {
  const auto id = static_cast<std::uint32_t>(name >> 32);
  if (mapping_ == nullptr || id != id_) {
    const auto extent = extents_.extents_.find(id);
    mapping_ = extent == extents_.extents_.end() ? nullptr : &extent->second;
    id_ = id;
  }
  if (mapping_ == nullptr || (name & 0xFFFFFFFF) >= (*mapping_)->slots() ||
      (*mapping_)->slot_bytes < record_bytes_) {
    return {};
  }
  return {name, *mapping_};
}

}  // namespace kvtier::session
