// An engine's pages as the kernels take them: where the pages of each layer lie, and tables of
// which pages a job's blocks are, written by the CPU and read by the device. Of a pool a table has
// the pages' numbers; of pages by pointers, a pointer for each side of each layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/session/namespace_entry.h"
#include "client/transfer/page_table.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::transfer {

// Layers [first, end) of a job, copied together.
struct LayerRange {
  std::uint32_t first, end;
};
// Bytes of a record.
struct ByteRange {
  std::size_t begin, end;
  std::size_t bytes() const noexcept { return end - begin; }
};
// What belongs to layers; the header goes with the first, the rounding up with the last.
ByteRange bytes_of(const LayerRange& layers, const session::NamespaceEntry& ns) noexcept;
// Their payload alone.
ByteRange payload_of(const LayerRange& layers, const session::NamespaceEntry& ns) noexcept;
// Of a record's scales, all layers together; none where no layer has any.
ByteRange scales_of(const session::NamespaceEntry& ns) noexcept;

// Not for pages of records. Keeps references: `pages` and `ns` outlive it.
class CudaPages {
 public:
  CudaPages(const PageTable& pages, const session::NamespaceEntry& ns) noexcept
      : pages_(pages), ns_(ns) {}

  // A multiple of 8.
  std::size_t table_bytes(std::size_t blocks) const noexcept;
  // `blocks` by their place in the PageTable.
  void write_table(std::span<const std::uint32_t> blocks, std::byte* to) const noexcept;

  // Calls kernel(args) with all that is of pages and layers in `args`: for `layers` of `blocks`
  // blocks whose table the device reads at `table`.
  template <class Kernel>
  void transfer(const LayerRange& layers, std::size_t blocks, const std::byte* table,
                const Kernel& kernel) const {
    const auto of_call = places(layers, blocks, table);
    kernels::cuda::TransferArgs args;
    args.layers = of_call;
    args.blocks = static_cast<std::uint32_t>(blocks);
    args.page_type = pages_.type();
    args.page_tokens = pages_.page_tokens();
    args.numbers = reinterpret_cast<const std::uint32_t*>(table);
    args.pages_alignment = pages_.pointer_alignment();
    kernel(args);
  }

 private:
  std::vector<kernels::cuda::TransferLayer> places(const LayerRange& layers, std::size_t blocks,
                                                   const std::byte* table) const;

  const PageTable& pages_;
  const session::NamespaceEntry& ns_;
};

}  // namespace kvtier::transfer
