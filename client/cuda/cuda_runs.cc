#include "client/cuda/cuda_runs.h"

#include <algorithm>

#include "core/base/units.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::transfer {

using kernels::cuda::check;

namespace {

// Shorter runs are left to the kernel that reads over the link: a copy has its start-up cost.
constexpr std::uint32_t kRunMin = 16;
// They unpack faster than the link fills, and leave the rest of the card to compute.
constexpr std::uint32_t kUnpackThreadBlocks = 48;

}  // namespace

void CudaRuns::take_from(std::vector<RecordCopy>& far, const std::vector<session::SlotRef>& slots) {
  // A whole record fits a buffer whatever the groups of layers.
  if (layout_.record_bytes + scales_of(ns_).bytes() > StagingRing::kBytes / 2) return;
  std::vector<RecordCopy> rest;
  for (std::size_t at = 0; at < far.size();) {
    const bool descends = at + 1 < far.size() && far[at + 1].from < far[at].from;
    std::size_t count = 1;
    while (at + count < far.size() && follows(far[at + count - 1], far[at + count], descends) &&
           slots[far[at + count].block].copied_with(slots[far[at].block])) {
      ++count;
    }
    if (count >= kRunMin) {
      const RecordCopy& lowest = far[descends ? at + count - 1 : at];
      add({lowest.from, lowest.block, static_cast<std::uint32_t>(count), descends});
    } else {
      rest.insert(rest.end(), far.begin() + static_cast<std::ptrdiff_t>(at),
                  far.begin() + static_cast<std::ptrdiff_t>(at + count));
    }
    at += count;
  }
  far = std::move(rest);
}

bool CudaRuns::follows(const RecordCopy& one, const RecordCopy& next,
                       bool descending) const noexcept {
  const std::byte* wanted =
      descending ? one.from - layout_.record_bytes : one.from + layout_.record_bytes;
  return next.from == wanted && next.block == one.block + 1;
}

// Parts of it whose pages are side by side go straight there.
void CudaRuns::add(Run run) {
  blocks_ += run.count;
  if (!pages_.of_records() || run.descends) return staged_.push_back(run);
  Run before{run.from, run.block, 0};
  while (run.count > 0) {
    std::uint32_t together = 1;
    while (together < run.count && pages_.record(run.block + together) ==
                                       pages_.record(run.block) + together * layout_.record_bytes) {
      ++together;
    }
    if (together < kRunMin) {
      before.count += together;
      run.skip(together, layout_.record_bytes);
      continue;
    }
    if (before.count > 0) staged_.push_back(before);
    direct_.push_back({run.from, run.block, together});
    run.skip(together, layout_.record_bytes);
    before = {run.from, run.block, 0};
  }
  if (before.count > 0) staged_.push_back(before);
}

std::size_t CudaRuns::prepare(const std::vector<LayerRange>& groups) {
  groups_ = groups;
  if (staged_.empty()) return 0;
  std::size_t widest = 0;
  for (const LayerRange& group : groups) {
    widest = std::max(
        widest, (pages_.of_records() ? bytes_of(group, ns_) : payload_of(group, ns_)).bytes());
  }
  std::size_t staged = 0;
  for (const Run& run : staged_) staged += run.count;
  if (!pages_.of_records()) scales_bytes_ = scales_of(ns_).bytes();
  pitch_ = round_up(widest, 256);
  chunk_blocks_ = static_cast<std::uint32_t>(std::min(StagingRing::kBytes / pitch_, staged));
  Chunk chunk;
  for (Run run : staged_) {
    while (run.count > 0) {
      const std::uint32_t count = rows_for(chunk, run.count);
      chunk.runs.push_back({run.from, run.block, count, run.descends});
      chunk.count += count;
      run.skip(count, layout_.record_bytes);
      if (chunk.count <= chunk_blocks_ / 2) continue;
      const std::uint32_t next = chunk.first + chunk.count;
      chunks_.push_back(std::exchange(chunk, {.runs = {}, .first = next}));
    }
  }
  if (chunk.count > 0) chunks_.push_back(std::move(chunk));
  // Where the records are in each buffer, and then each chunk's pages.
  std::size_t bytes = StagingRing::kBuffers * chunk_blocks_ * sizeof(void*);
  for (Chunk& c : chunks_) {
    c.table = bytes;
    bytes += pages_bytes(c);
  }
  return bytes;
}

// How many of a run's rows go into a chunk that is at most half full. All chunks are of about one
// size, for behind a small one the copy engine waits, and of one run where they can be, for each
// run is a copy.
std::uint32_t CudaRuns::rows_for(const Chunk& chunk, std::uint32_t rows) const noexcept {
  const std::uint32_t left = chunk_blocks_ - chunk.count;
  if (rows <= left || chunk.count > 0) return std::min(rows, left);
  const std::uint32_t shares = (rows + chunk_blocks_ - 1) / chunk_blocks_;
  return (rows + shares - 1) / shares;
}

std::size_t CudaRuns::pages_bytes(const Chunk& chunk) const noexcept {
  return pages_.of_records() ? groups_.size() * chunk.count * sizeof(void*)
                             : cuda_pages_.table_bytes(chunk.count);
}

// Of records, for each group, where in its page its bytes go.
void CudaRuns::write_pages(const Chunk& chunk, std::byte* to) const {
  std::vector<std::uint32_t> blocks;
  blocks.reserve(chunk.count);
  for (const Run& run : chunk.runs) {
    for (std::uint32_t row = 0; row < run.count; ++row) blocks.push_back(run.block_of(row));
  }
  if (!pages_.of_records()) return cuda_pages_.write_table(blocks, to);
  auto** at = reinterpret_cast<std::byte**>(to);
  for (const LayerRange& group : groups_) {
    const std::size_t begin = bytes_of(group, ns_).begin;
    for (const std::uint32_t block : blocks) *at++ = pages_.record(block) + begin;
  }
}

void CudaRuns::write_table(std::byte* written, const std::byte* read) {
  table_ = read;
  if (staged_.empty()) return;
  auto** at = reinterpret_cast<std::byte**>(written);
  for (std::size_t buffer = 0; buffer < StagingRing::kBuffers; ++buffer) {
    for (std::uint32_t i = 0; i < chunk_blocks_; ++i)
      *at++ = gpu_.ring().buffer(buffer) + i * pitch_;
  }
  for (const Chunk& chunk : chunks_) write_pages(chunk, written + chunk.table);
}

bool CudaRuns::launch(std::size_t group) {
  const ByteRange range = bytes_of(groups_[group], ns_);
  for (const Run& run : direct_)
    copy_rows(pages_.record(run.block) + range.begin, layout_.record_bytes, run, range,
              gpu_.streams().load.view());
  if (chunks_.empty()) return false;
  StagingRing& ring = gpu_.ring();
  const cudaStream_t unpacking = gpu_.streams().unpack.get();
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const bool started = group == 0 && c < started_.size();
    const std::size_t buffer = started ? started_[c] : fill_next(chunks_[c], groups_[group]);
    check(cudaStreamWaitEvent(unpacking, ring.filled(buffer), 0), "an event of a load");
    unpack(chunks_[c], buffer, group);
    check(cudaEventRecord(ring.emptied(buffer), unpacking), "an event of a load");
  }
  return true;
}

Result<void> CudaRuns::start() {
  if (scales_bytes_ > 0 && !chunks_.empty()) {
    const std::size_t rows = chunks_.back().first + chunks_.back().count;
    auto memory = gpu_.pools().memory(CudaPools::Kind::device, rows * scales_bytes_);
    if (!memory) return memory.error();
    scales_ = std::move(*memory);
  }
  for (std::size_t c = 0; c < std::min(chunks_.size(), StagingRing::kBuffers); ++c)
    started_.push_back(fill_next(chunks_[c], groups_[0]));
  if (scales_) copy_scales();
  return {};
}

// Beside the first of the payload, on the stream of what uses them.
void CudaRuns::copy_scales() const {
  std::byte* to = scales_.get();
  for (const Chunk& chunk : chunks_) {
    for (const Run& run : chunk.runs) {
      copy_rows(to, scales_bytes_, run, scales_of(ns_), gpu_.streams().unpack.view());
      to += run.count * scales_bytes_;
    }
  }
}

// Returns the buffer that it is in.
std::size_t CudaRuns::fill_next(const Chunk& chunk, const LayerRange& layers) {
  StagingRing& ring = gpu_.ring();
  const std::size_t buffer = ring.take();
  const auto& streams = gpu_.streams().to_ring;
  const StreamView stream = streams[buffer % streams.size()].view();
  check(cudaStreamWaitEvent(stream.get(), ring.emptied(buffer), 0), "an event of a load");
  stage(chunk, ring.buffer(buffer), layers, stream);
  check(cudaEventRecord(ring.filled(buffer), stream.get()), "an event of a load");
  return buffer;
}

void CudaRuns::copy_rows(std::byte* to, std::size_t to_pitch, const Run& run,
                         const ByteRange& range, StreamView stream) const {
  check(cudaMemcpy2DAsync(to, to_pitch, run.from + range.begin, layout_.record_bytes, range.bytes(),
                          run.count, cudaMemcpyDefault, stream.get()),
        "a copy of a run of records");
}

void CudaRuns::stage(const Chunk& chunk, std::byte* buffer, const LayerRange& layers,
                     StreamView stream) const {
  const ByteRange range = pages_.of_records() ? bytes_of(layers, ns_) : payload_of(layers, ns_);
  for (const Run& run : chunk.runs) {
    copy_rows(buffer, pitch_, run, range, stream);
    buffer += run.count * pitch_;
  }
}

// A buffer's records are the payload of the group's layers alone.
void CudaRuns::unpack(const Chunk& chunk, std::size_t buffer, std::size_t group) const {
  const LayerRange& layers = groups_[group];
  const auto* from = reinterpret_cast<const std::byte* const*>(table_) + buffer * chunk_blocks_;
  const std::byte* pages = table_ + chunk.table;
  const StreamView stream = gpu_.streams().unpack.view();
  if (pages_.of_records()) {
    const auto* to = reinterpret_cast<std::byte* const*>(pages) + group * chunk.count;
    return kernels::cuda::copy_pieces(from, to, chunk.count, 0, bytes_of(layers, ns_).bytes(),
                                      kUnpackThreadBlocks, stream);
  }
  cuda_pages_.transfer(layers, chunk.count, pages, [&](kernels::cuda::TransferArgs& args) {
    args.records = from;
    args.records_begin = payload_of(layers, ns_).begin;
    args.thread_blocks = kUnpackThreadBlocks;
    args.on_device = true;
    if (scales_) {
      const std::size_t before = ns_.layers[layers.first].scales_offset - layout_.scales_offset;
      args.scales = scales_.at<float>(chunk.first * scales_bytes_ + before);
      args.scales_pitch = static_cast<std::uint32_t>(scales_bytes_ / sizeof(float));
    }
    kernels::cuda::gather_and_dequantise(args, stream);
  });
}

}  // namespace kvtier::transfer
