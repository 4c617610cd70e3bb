// The part of a load that the copy engine does: runs of slots side by side in pinned host memory, a
// few layers of all of them in one two-dimensional copy. It comes within a percent of the link's
// rate, where a kernel that reads over the link does not.
//
// A run whose pages are records side by side too is copied straight there. Any other goes through a
// ring of buffers on the card, out of which a kernel fills the pages on a second stream while the
// next buffer is filled.
#pragma once

#include <vector>

#include "client/cuda/cuda_gpu.h"
#include "client/cuda/cuda_pages.h"

namespace kvtier::transfer {

// Of one record: from where, and which of the load's blocks it is.
struct RecordCopy {
  const std::byte* from;
  std::uint32_t block;
};
class CudaRuns {
 public:
  CudaRuns(CudaGpu& gpu, const session::NamespaceEntry& ns, const PageTable& pages) noexcept
      : gpu_(gpu), ns_(ns), layout_(ns.layout), pages_(pages), cuda_pages_(pages, ns) {}

  // Takes the long runs out of `far`; the slots of the load's blocks are `slots`.
  void take_from(std::vector<RecordCopy>& far, const std::vector<session::SlotRef>& slots);
  std::size_t blocks() const noexcept { return blocks_; }

  // How much of the load's table is for this; `groups` are all the load will launch.
  std::size_t prepare(const std::vector<LayerRange>& groups);
  // Fills the ring with the first of it, which needs no table. The ring is the caller's until the
  // last launch(). Errors: no_space, io. Throws CudaError.
  Result<void> start();
  bool uses_ring() const noexcept { return !staged_.empty(); }
  // That part of the table: as the CPU writes it, and where the device will read it.
  void write_table(std::byte* written, const std::byte* read);
  // Copies of one group, on the load's stream. Returns whether the last of them is on the stream
  // that unpacks. Throws CudaError.
  bool launch(std::size_t group);

 private:
  // Rows of memory in ascending order; their blocks ascend or, where the slots had been freed from
  // a prefix's tail on, descend.
  struct Run {
    const std::byte* from;
    std::uint32_t block;
    std::uint32_t count;
    bool descends = false;
    std::uint32_t block_of(std::uint32_t row) const noexcept {
      return descends ? block - row : block + row;
    }
    // Without its first rows.
    void skip(std::uint32_t rows, std::size_t record_bytes) noexcept {
      from += rows * record_bytes;
      block = block_of(rows);
      count -= rows;
    }
  };
  // Runs that fill one buffer, and the place of their pages in the table.
  struct Chunk {
    std::vector<Run> runs;
    std::uint32_t first = 0;  // rows of earlier chunks
    std::uint32_t count = 0;
    std::size_t table = 0;
  };

  bool follows(const RecordCopy& one, const RecordCopy& next, bool descending) const noexcept;
  void add(Run run);
  void copy_rows(std::byte* to, std::size_t to_pitch, const Run& run, const ByteRange& range,
                 StreamView stream) const;
  std::uint32_t rows_for(const Chunk& chunk, std::uint32_t rows) const noexcept;
  void copy_scales() const;
  std::size_t fill_next(const Chunk& chunk, const LayerRange& layers);
  void stage(const Chunk& chunk, std::byte* buffer, const LayerRange& layers,
             StreamView stream) const;
  void unpack(const Chunk& chunk, std::size_t buffer, std::size_t group) const;
  std::size_t pages_bytes(const Chunk& chunk) const noexcept;
  void write_pages(const Chunk& chunk, std::byte* to) const;

  CudaGpu& gpu_;
  const session::NamespaceEntry& ns_;
  const RecordLayout& layout_;
  const PageTable& pages_;
  const CudaPages cuda_pages_;
  std::vector<Run> direct_;
  std::vector<Run> staged_;
  std::size_t blocks_ = 0;
  std::vector<LayerRange> groups_;
  std::vector<Chunk> chunks_;
  std::size_t pitch_ = 0;         // of a record in a buffer
  std::size_t scales_bytes_ = 0;  // of a record, where K and V pages need them
  CudaPools::Memory scales_;      // of all staged records, brought at once: small rows are slow
  std::uint32_t chunk_blocks_ = 0;
  const std::byte* table_ = nullptr;
  std::vector<std::size_t> started_;  // buffers of the first chunks of the first group
};

}  // namespace kvtier::transfer
