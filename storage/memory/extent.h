// Extents: the memory of a tier, shared with clients as file descriptors.
//
// One extent is one mapping, cut into slots of one size (one record each). The extent's slot table
// lies in a descriptor of its own, so that no client can write to it. Only the daemon's control
// thread calls anything here, but that an extent may be destroyed on another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/base/cuda_driver.h"
#include "core/base/fd.h"
#include "core/base/strong.h"
#include "kvtier/result.h"
#include "kvtier/tier.h"
#include "storage/memory/slot_table.h"

namespace kvtier::storage {

// Unique for a daemon's whole life and over its restarts; never reused.
using ExtentId = Strong<struct ExtentTag, std::uint32_t>;

// Owns its two descriptors and mappings. Destroying it gives the memory back once every client has
// unmapped it.
class Extent {
 public:
  struct Shape {
    std::uint64_t bytes = 0;       // of the whole extent
    std::uint64_t slot_bytes = 0;  // a multiple of 4 KiB
    std::uint64_t owner = 0;       // SlotTableHeader::owner
    std::uint32_t slots() const noexcept { return static_cast<std::uint32_t>(bytes / slot_bytes); }
  };

  // How a client maps the descriptor; the numbers are those of the wire.
  enum class Kind : std::uint8_t { memfd = 0, cuda = 1 };

  Extent(ExtentId id, Tier tier, Shape shape, UniqueFd memory, Mapping bytes, SlotTable table,
         Kind kind = Kind::memfd)
      : id_(id),
        tier_(tier),
        kind_(kind),
        shape_(shape),
        memory_(std::move(memory)),
        bytes_(std::move(bytes)),
        table_(std::move(table)) {}

  ExtentId id() const noexcept { return id_; }
  Tier tier() const noexcept { return tier_; }
  Kind kind() const noexcept { return kind_; }
  const Shape& shape() const noexcept { return shape_; }
  int memory_fd() const noexcept { return memory_.get(); }
  SlotTable& table() noexcept { return table_; }
  const SlotTable& table() const noexcept { return table_; }

  // The daemon's own view of a slot; empty where the daemon cannot address the memory (HBM).
  std::span<std::byte> slot(std::uint32_t index) const noexcept {
    if (!bytes_) return {};
    return bytes_.bytes().subspan(index * shape_.slot_bytes, shape_.slot_bytes);
  }
  std::span<std::byte> bytes() const noexcept { return bytes_.bytes(); }

 private:
  ExtentId id_;
  Tier tier_;
  Kind kind_;
  Shape shape_;
  UniqueFd memory_;
  Mapping bytes_;
  SlotTable table_;
};

// What the slot table of such an extent begins with. `gpu`: whose memory it is, if a GPU's.
SlotTableHeader slot_table_header(ExtentId id, Tier tier, const Extent::Shape& shape,
                                  const GpuUuid& gpu = {});
// The kernel's id of this boot, as slot tables keep it; zero where /proc is not there.
const std::array<std::byte, 16>& host_boot_id();

// Makes the extents of one tier. Implementations: memfd (host memory, and device memory emulated in
// host memory); CUDA virtual memory.
class MemoryExtents {
 public:
  virtual ~MemoryExtents() = default;
  virtual Tier tier() const noexcept = 0;
  // What the bytes of an extent are a multiple of.
  virtual std::uint64_t granularity() const noexcept = 0;
  // Errors: no_space, io.
  virtual Result<std::unique_ptr<Extent>> create(ExtentId id, Extent::Shape shape) = 0;
  // Extents of so many bytes will be wanted soon: the memory of one or some of them is made ready
  // in the background, within `room` bytes for all that is made ready. create() does not wait for
  // it, and takes it as far as it is ready.
  virtual void prepare(std::uint64_t bytes, std::uint64_t room) = 0;
  // What prepare() made or makes is not wanted any more, and is given back.
  virtual void forget_prepared() {}

  // Runs a task on a thread that may take its time: giving back memory takes the kernel long. Where
  // it is not set, the task runs at once.
  std::function<void(std::function<void()>)> elsewhere;
};

struct MemfdOptions {
  bool huge_pages = false;  // fill with huge pages what is made ready; goes on without them
  bool prefault = false;    // every page at creation, which then takes a second a GiB
  GpuUuid gpu{};            // that host memory stands in for
};
std::unique_ptr<MemoryExtents> make_memfd_extents(Tier tier, MemfdOptions options);

// Takes an extent over from an earlier process by its two descriptors; its id, tier and shape are
// what its slot table says. Errors: corrupt (sizes, magic, not sealed memory), version, io.
Result<std::unique_ptr<Extent>> adopt_memfd_extent(UniqueFd memory, UniqueFd table);

// GPU memory that the daemon owns and cannot address: made without a CUDA context, shared as a
// descriptor, its slot table in host memory. Errors: unavailable (no driver), invalid (no such
// GPU), refused (a GPU that cannot share its memory), io; each says the mend.
Result<std::unique_ptr<MemoryExtents>> make_cuda_extents(int device);

// As adopt_memfd_extent(), for an extent of make_cuda_extents(device). That the memory is of that
// GPU is checked; its size is not known before somebody maps it. Errors: corrupt, version, io,
// unavailable.
Result<std::unique_ptr<Extent>> adopt_cuda_extent(int device, UniqueFd memory, UniqueFd table);

}  // namespace kvtier::storage
