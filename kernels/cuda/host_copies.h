// Copies between pinned host memory and a GPU's memory by the copy engine. It moves pieces of 128
// KiB or more, given many at a time, at the rate of one large copy; kernels read host memory in
// requests of 128 bytes, which leaves them at 0.92 of it, but need no pieces of that size.
//
// Nothing here may be captured into a graph, and no stream may be the default one. One thread at a
// time.
#pragma once

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"

namespace kvtier::kernels::cuda {

inline constexpr std::size_t kEnginePieceBytes = 128U << 10;

// Layers whose payload in one record makes a piece for the copy engine.
std::uint32_t layers_for_engine(const RecordLayout& layout) noexcept;

enum class Direction : std::uint8_t { to_device, to_host };

// copy_pieces by the copy engine. `from` and `to` are arrays in the CPU's memory, read before this
// returns; of the addresses in them one side's are in pinned host memory, the other's on the
// device. `offset` and `bytes` are any.
void copy_pieces_by_engine(const std::byte* const* from, std::byte* const* to, std::uint32_t count,
                           std::uint64_t offset, std::uint64_t bytes, Direction direction,
                           Stream stream);

// gather_and_dequantise for records in pinned host memory: the copy engine brings the payload to a
// ring in the GPU's memory, and a kernel with few thread blocks takes it from there to the pages.
class HostLoader {
 public:
  // Throws CudaError where there is no room for the ring.
  explicit HostLoader(std::size_t ring_bytes = std::size_t{64} << 20);
  ~HostLoader();
  HostLoader(const HostLoader&) = delete;
  HostLoader& operator=(const HostLoader&) = delete;

  // `records` holds the addresses of args.records in the CPU's memory, read before this returns.
  // The pages are written in the order of `stream`; the copies to the ring run ahead of it. Full
  // speed takes layers_for_engine() layers a call, or a multiple.
  void load(const TransferArgs& args, const std::byte* const* records, Stream stream);

 private:
  static constexpr std::size_t kParts = 4;
  struct Part {
    std::byte* payload = nullptr;  // then the scales
    cudaEvent_t filled = nullptr;
    cudaEvent_t drained = nullptr;
  };

  void release() noexcept;
  void load_chunk(const TransferArgs& chunk, const std::byte* const* records,
                  std::uint32_t page_pitch, Stream stream);

  std::size_t part_bytes_;
  DeviceArray<std::byte> ring_;
  Stream copies_ = nullptr;
  Part parts_[kParts];
  std::size_t next_ = 0;
};

}  // namespace kvtier::kernels::cuda
