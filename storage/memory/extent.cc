#include "storage/memory/extent.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

namespace kvtier::storage {
namespace {

std::array<std::byte, 16> read_boot_id() {
  std::array<std::byte, 16> id{};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  file >> text;
  std::erase(text, '-');
  if (const auto bytes = from_hex(text)) std::copy(bytes->begin(), bytes->end(), id.begin());
  return id;
}

}  // namespace

const std::array<std::byte, 16>& host_boot_id() {
  static const std::array<std::byte, 16> kBoot = read_boot_id();
  return kBoot;
}

SlotTableHeader slot_table_header(ExtentId id, Tier tier, const Extent::Shape& shape,
                                  const GpuUuid& gpu) {
  SlotTableHeader header{};
  header.extent_id = id.value;
  header.tier = static_cast<std::uint32_t>(tier);
  header.slots = shape.slots();
  header.slot_bytes = shape.slot_bytes;
  header.extent_bytes = shape.bytes;
  header.owner = shape.owner;
  std::memcpy(header.boot_id, host_boot_id().data(), sizeof header.boot_id);
  std::memcpy(header.gpu, gpu.data(), sizeof header.gpu);
  return header;
}

}  // namespace kvtier::storage
