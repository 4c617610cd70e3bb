#include "kernels/cuda/host_copies.h"

#include <algorithm>

#include "core/base/units.h"
#include "kernels/cuda/staged.h"

namespace kvtier::kernels::cuda {
namespace {

// Copies of one call: with thousands the driver is slower than with a few hundred.
constexpr std::size_t kBatch = 128;
constexpr std::size_t kScaleAlignment = 256;

bool scaled(const RecordLayout& layout) {
  return has_scales(layout.format);
}

// Of one block's layers in a part of the ring.
std::size_t scale_bytes(const RecordLayout& layout, std::uint32_t layers) {
  return scaled(layout) ? std::size_t{layers} * 2 * layout.kv_heads * sizeof(float) : 0;
}

// `count` in the fewest shares of at most `most`, all of about one size.
std::uint32_t even_share(std::uint32_t count, std::size_t most) {
  const std::size_t shares = std::max<std::size_t>((count + most - 1) / most, 1);
  return static_cast<std::uint32_t>((count + shares - 1) / shares);
}

// Copies collected into calls of kBatch.
class Batch {
 public:
  Batch(Direction direction, Stream stream) : stream_(stream) {
    const bool up = direction == Direction::to_device;
    attributes_.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes_.srcLocHint.type = up ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    attributes_.dstLocHint.type = up ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
  }

  void add(void* to, const void* from, std::size_t bytes) {
    to_[count_] = to;
    from_[count_] = from;
    bytes_[count_] = bytes;
    if (++count_ == kBatch) flush();
  }
  void flush() {
    if (count_ == 0) return;
    std::size_t first = 0;
    check(cudaMemcpyBatchAsync(to_, from_, bytes_, count_, &attributes_, &first, 1, stream_),
          "cudaMemcpyBatchAsync");
    count_ = 0;
  }

 private:
  Stream stream_;
  cudaMemcpyAttributes attributes_{};
  std::size_t count_ = 0;
  void* to_[kBatch];
  const void* from_[kBatch];
  std::size_t bytes_[kBatch];
};

}  // namespace

std::uint32_t layers_for_engine(const RecordLayout& layout) noexcept {
  const std::size_t layers = (kEnginePieceBytes + layout.layer_bytes - 1) / layout.layer_bytes;
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(layers, 1, layout.layers));
}

void copy_pieces_by_engine(const std::byte* const* from, std::byte* const* to, std::uint32_t count,
                           std::uint64_t offset, std::uint64_t bytes, Direction direction,
                           Stream stream) {
  if (bytes == 0) return;
  Batch batch(direction, stream);
  for (std::uint32_t i = 0; i < count; ++i) batch.add(to[i] + offset, from[i] + offset, bytes);
  batch.flush();
}

HostLoader::HostLoader(std::size_t ring_bytes)
    : part_bytes_(ring_bytes / kParts / kScaleAlignment * kScaleAlignment),
      ring_(kParts * part_bytes_) {
  try {
    check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (std::size_t i = 0; i < kParts; ++i) {
      parts_[i].payload = ring_.get() + i * part_bytes_;
      for (cudaEvent_t* event : {&parts_[i].filled, &parts_[i].drained}) {
        check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
      }
    }
  } catch (...) {
    release();
    throw;
  }
}

HostLoader::~HostLoader() {
  release();
}

// The ring is freed after it, and cudaFree waits for the work that uses it.
void HostLoader::release() noexcept {
  for (Part& part : parts_) {
    for (cudaEvent_t event : {part.filled, part.drained}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  if (copies_ != nullptr) cudaStreamDestroy(copies_);
}

void HostLoader::load(const TransferArgs& args, const std::byte* const* records, Stream stream) {
  KVTIER_CHECK(args.first_layer + args.layers <= args.layout.layers);
  const RecordLayout& layout = args.layout;
  // Whole layers of a block that fit into a part of the ring, and as many blocks of those; in
  // chunks of like size, because the engine would wait behind a small one for a part to be drained.
  const std::size_t room = part_bytes_ - kScaleAlignment;
  const std::size_t layer_room = layout.layer_bytes + scale_bytes(layout, 1);
  KVTIER_CHECK(layer_room <= room);
  const std::uint32_t layers_each = even_share(args.layers, room / layer_room);
  for (std::uint32_t layer = 0; layer < args.layers; layer += layers_each) {
    const std::uint32_t layers = std::min(layers_each, args.layers - layer);
    const std::uint32_t blocks_each = even_share(args.blocks, room / (layers * layer_room));
    for (std::uint32_t block = 0; block < args.blocks; block += blocks_each) {
      TransferArgs chunk = args;
      chunk.first_layer = args.first_layer + layer;
      chunk.layers = layers;
      chunk.blocks = std::min(blocks_each, args.blocks - block);
      chunk.records = args.records + block;
      const std::size_t first_page = std::size_t{layer} * args.blocks + block;
      chunk.k_pages = args.k_pages + first_page;
      chunk.v_pages = args.v_pages + first_page;
      load_chunk(chunk, records + block, args.blocks, stream);
    }
  }
}

void HostLoader::load_chunk(const TransferArgs& chunk, const std::byte* const* records,
                            std::uint32_t page_pitch, Stream stream) {
  Part& part = parts_[next_];
  next_ = (next_ + 1) % kParts;
  const RecordLayout& layout = chunk.layout;
  const std::size_t piece = std::size_t{chunk.layers} * layout.layer_bytes;
  auto* scales = reinterpret_cast<float*>(
      part.payload + round_up(std::size_t{chunk.blocks} * piece, kScaleAlignment));

  check(cudaStreamWaitEvent(copies_, part.drained, 0), "cudaStreamWaitEvent");
  Batch batch(Direction::to_device, copies_);
  const std::size_t from = layout.k_offset(chunk.first_layer, 0);
  for (std::uint32_t i = 0; i < chunk.blocks; ++i) {
    batch.add(part.payload + i * piece, records[i] + from, piece);
  }
  batch.flush();
  check(cudaEventRecord(part.filled, copies_), "cudaEventRecord");

  // While the engine copies. The kernel that read this part before is ahead of it on its stream,
  // which may be another one.
  check(cudaStreamWaitEvent(stream, part.drained, 0), "cudaStreamWaitEvent");
  if (scaled(layout)) gather_scales(chunk, scales, stream);
  check(cudaStreamWaitEvent(stream, part.filled, 0), "cudaStreamWaitEvent");
  dequantise_staged(chunk, {.payload = part.payload, .scales = scales}, page_pitch, stream);
  check(cudaEventRecord(part.drained, stream), "cudaEventRecord");
}

}  // namespace kvtier::kernels::cuda
