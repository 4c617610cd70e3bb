#include "kernels/cuda/host_copies.h"

#include <algorithm>

#include "client/base/units.h"
#include "kernels/cuda/staged.h"

namespace kvtier::kernels::cuda {
namespace {

// Copies of one call: with thousands the driver is slower than with a few hundred.
constexpr std::size_t kBatch = 128;
constexpr std::size_t kScaleAlignment = 256;

bool scaled(const RecordLayout& layout) {
  return has_scales(layout.format);
}

// Of one block's layers in a half of the ring.
std::size_t scale_bytes(const RecordLayout& layout, std::uint32_t layers) {
  return scaled(layout) ? std::size_t{layers} * 2 * layout.kv_heads * sizeof(float) : 0;
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
    : half_bytes_(ring_bytes / 2 / kScaleAlignment * kScaleAlignment), ring_(2 * half_bytes_) {
  try {
    check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (std::size_t i = 0; i < 2; ++i) {
      halves_[i].payload = ring_.get() + i * half_bytes_;
      for (cudaEvent_t* event : {&halves_[i].filled, &halves_[i].drained}) {
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
  for (Half& half : halves_) {
    for (cudaEvent_t event : {half.filled, half.drained}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  if (copies_ != nullptr) cudaStreamDestroy(copies_);
}

void HostLoader::load(const TransferArgs& args, const std::byte* const* records, Stream stream) {
  KVTIER_CHECK(args.first_layer + args.layers <= args.layout.layers);
  const RecordLayout& layout = args.layout;
  // Whole layers of a block that fit into half of the ring, and as many blocks of those.
  const std::size_t room = half_bytes_ - kScaleAlignment;
  const std::size_t layer_room = layout.layer_bytes + scale_bytes(layout, 1);
  KVTIER_CHECK(layer_room <= room);
  const auto layers_most = static_cast<std::uint32_t>(
      std::min<std::size_t>(room / layer_room, std::max(args.layers, 1U)));
  for (std::uint32_t layer = 0; layer < args.layers; layer += layers_most) {
    const std::uint32_t layers = std::min(layers_most, args.layers - layer);
    const auto blocks_most = static_cast<std::uint32_t>(
        std::min<std::size_t>(room / (layers * layer_room), std::max(args.blocks, 1U)));
    for (std::uint32_t block = 0; block < args.blocks; block += blocks_most) {
      TransferArgs chunk = args;
      chunk.first_layer = args.first_layer + layer;
      chunk.layers = layers;
      chunk.blocks = std::min(blocks_most, args.blocks - block);
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
  Half& half = halves_[next_];
  next_ = 1 - next_;
  const RecordLayout& layout = chunk.layout;
  const std::size_t piece = std::size_t{chunk.layers} * layout.layer_bytes;
  auto* scales = reinterpret_cast<float*>(
      half.payload + round_up(std::size_t{chunk.blocks} * piece, kScaleAlignment));

  check(cudaStreamWaitEvent(copies_, half.drained, 0), "cudaStreamWaitEvent");
  Batch batch(Direction::to_device, copies_);
  const std::size_t from = layout.k_offset(chunk.first_layer, 0);
  for (std::uint32_t i = 0; i < chunk.blocks; ++i) {
    batch.add(half.payload + i * piece, records[i] + from, piece);
  }
  batch.flush();
  check(cudaEventRecord(half.filled, copies_), "cudaEventRecord");

  // While the engine copies. The kernel that read this half before is ahead of it on its stream,
  // which may be another one.
  check(cudaStreamWaitEvent(stream, half.drained, 0), "cudaStreamWaitEvent");
  if (scaled(layout)) gather_scales(chunk, scales, stream);
  check(cudaStreamWaitEvent(stream, half.filled, 0), "cudaStreamWaitEvent");
  dequantise_staged(chunk, {.payload = half.payload, .scales = scales}, page_pitch, stream);
  check(cudaEventRecord(half.drained, stream), "cudaEventRecord");
}

}  // namespace kvtier::kernels::cuda
