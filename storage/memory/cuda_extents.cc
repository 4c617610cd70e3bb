#include <sys/stat.h>

#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/cuda_driver.h"
#include "kvtier/record_layout.h"
#include "storage/memory/extent.h"

namespace kvtier::storage {
namespace {

class CudaExtents final : public MemoryExtents {
 public:
  CudaExtents(const CudaDriver& driver, const CudaDriver::Device& device, std::uint64_t granularity)
      : driver_(driver), device_(device.number), gpu_(device.uuid), granularity_(granularity) {}

  Tier tier() const noexcept override { return Tier::device; }
  std::uint64_t granularity() const noexcept override { return granularity_; }
  void prepare(std::uint64_t, std::uint64_t) override {}  // made at once

  Result<std::unique_ptr<Extent>> create(ExtentId id, Extent::Shape shape) override {
    KVTIER_CHECK(shape.slot_bytes > 0 && shape.slot_bytes % kRecordAlignment == 0);
    KVTIER_CHECK(shape.bytes >= shape.slot_bytes && shape.bytes % granularity_ == 0);
    auto memory = driver_.create(device_, shape.bytes);
    if (!memory) return memory.error();
    auto table = SlotTable::create(slot_table_header(id, Tier::device, shape, gpu_));
    if (!table) return table.error();
    return std::make_unique<Extent>(id, Tier::device, shape, std::move(*memory), Mapping(),
                                    std::move(*table), Extent::Kind::cuda);
  }

 private:
  const CudaDriver& driver_;
  const int device_;
  const GpuUuid gpu_;
  const std::uint64_t granularity_;
};

}  // namespace

Result<std::unique_ptr<MemoryExtents>> make_cuda_extents(int device) {
  const auto driver = CudaDriver::get();
  if (!driver) return driver.error();
  const auto gpu = (*driver)->device(device);
  if (!gpu) return gpu.error();
  if (!gpu->shares_memory) {
    return make_error(Errc::refused, "GPU " + std::to_string(device) + " (" + gpu->name +
                                         ") cannot share its memory between processes; use "
                                         "another GPU, or backend = \"memory\"");
  }
  const auto granularity = (*driver)->granularity(device);
  if (!granularity) return granularity.error();
  return std::make_unique<CudaExtents>(**driver, *gpu, *granularity);
}

Result<std::unique_ptr<Extent>> adopt_cuda_extent(int device, UniqueFd memory, UniqueFd table) {
  auto slots = SlotTable::adopt(std::move(table));
  if (!slots) return slots.error();
  const SlotTableHeader& header = slots->header();
  const std::string name = "extent " + std::to_string(header.extent_id);
  const Extent::Shape shape{header.extent_bytes, header.slot_bytes, header.owner};
  if (static_cast<Tier>(header.tier) != Tier::device) {
    return make_error(Errc::corrupt, name + ": its slot table is not of the device tier");
  }
  if (shape.slots() != header.slots) return make_error(Errc::corrupt, name + ": number of slots");
  // The driver's own descriptors are of its device file; anything else it must not be asked about.
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) return errno_error(Errc::io, name + ": fstat");
  if (!S_ISCHR(status.st_mode)) {
    return make_error(Errc::corrupt, name + ": its descriptor is of no GPU memory");
  }
  const auto driver = CudaDriver::get();
  if (!driver) return driver.error();
  const auto granularity = (*driver)->granularity(device);
  if (!granularity) return granularity.error();
  if (shape.bytes % *granularity != 0) return make_error(Errc::corrupt, name + ": size");
  const auto owner = (*driver)->owner(memory.get());
  if (!owner) return make_error(owner.error().code, name + ": " + owner.error().message);
  if (*owner != device) {
    return make_error(Errc::corrupt, name + ": memory of GPU " + std::to_string(*owner) +
                                         ", not of GPU " + std::to_string(device));
  }
  const ExtentId id(header.extent_id);
  return std::make_unique<Extent>(id, Tier::device, shape, std::move(memory), Mapping(),
                                  std::move(*slots), Extent::Kind::cuda);
}

}  // namespace kvtier::storage
