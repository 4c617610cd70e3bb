#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "bench/gpu/gpu_commands.h"
#include "bench/gpu/gpu_shape.h"
#include "bench/gpu/gpu_timing.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"

namespace kvtier::bench {
namespace {

using kernels::cuda::check;
using kernels::cuda::DeviceArray;
using kernels::cuda::PinnedMemfd;
using kernels::cuda::Stream;
using kernels::cuda::TransferArgs;
using kernels::cuda::TransferLayer;

constexpr std::uint32_t kBlocks = 1024;      // 16,384 tokens
constexpr std::uint32_t kThreadBlocks = 16;  // few multiprocessors: the rest computes
constexpr std::uint32_t kStagedBlocks = 64;  // records in HBM, to be copied to the host

// Records of kBlocks blocks in pinned host memory, in slots in random order, and their BF16 pages.
class Blocks {
 public:
  explicit Blocks(StorageFormat format)
      : layout_(Llama8B::layout(format)),
        host_(kBlocks * layout_.record_bytes),
        staged_(2 * kStagedBlocks * layout_.record_bytes),
        page_bytes_(std::size_t{Llama8B::kKvHeads} * Llama8B::kBlockTokens * Llama8B::kHeadDim * 2),
        pages_bytes_(std::size_t{2} * Llama8B::kLayers * kBlocks * page_bytes_),
        pages_(pages_bytes_) {
    std::vector<std::uint32_t> slots(kBlocks);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(1));
    std::vector<std::byte*> on_device;
    for (const std::uint32_t slot : slots) {
      on_device.push_back(host_.device() + slot * layout_.record_bytes);
    }
    host_pointers_ = DeviceArray<std::byte*>(on_device);
    std::vector<std::byte*> staged;
    for (std::uint32_t i = 0; i < 2 * kStagedBlocks; ++i) {
      staged.push_back(staged_.get() + i * layout_.record_bytes);
    }
    staged_pointers_ = DeviceArray<std::byte*>(staged);
    pages_.fill_bytes(0x3C);  // a small BF16 number everywhere
    std::memset(host_.host(), 0x3C, host_.bytes());
    fill_page_tables();
  }

  // All blocks' pages and their records in host memory.
  TransferArgs load(std::uint32_t first_layer, std::uint32_t layers) const {
    return {.layers = std::span(load_layers_).subspan(first_layer, layers),
            .blocks = kBlocks,
            .records = host_pointers_.get(),
            .page_tokens = Llama8B::kBlockTokens,
            .thread_blocks = kThreadBlocks};
  }
  // The pages of one batch of kStagedBlocks blocks, and half `half` of the records in HBM.
  TransferArgs pack(std::uint32_t batch, std::uint32_t half, std::uint32_t thread_blocks) const {
    return {.layers = std::span(pack_layers_)
                          .subspan(std::size_t{batch} * Llama8B::kLayers, Llama8B::kLayers),
            .blocks = kStagedBlocks,
            .records = staged_pointers_.get() + std::size_t{half} * kStagedBlocks,
            .page_tokens = Llama8B::kBlockTokens,
            .thread_blocks = thread_blocks};
  }

  std::size_t payload_bytes() const { return kBlocks * layout_.payload_bytes; }
  std::size_t record_bytes() const { return layout_.record_bytes; }
  std::byte* const* host_pointers() const { return host_pointers_.get(); }
  const PinnedMemfd& host() const { return host_; }
  std::byte* pages() const { return pages_.get(); }
  std::size_t pages_bytes() const { return pages_bytes_; }
  const RecordLayout& layout() const { return layout_; }

 private:
  // [layer][block] over all blocks for loads; [layer][block of the batch] by batch for write-backs.
  void fill_page_tables() {
    std::vector<void*> k, v, batch_k, batch_v;
    const auto page = [&](std::uint32_t layer, std::uint32_t block, std::size_t side) {
      return pages_.get() + ((std::size_t{layer} * kBlocks + block) * 2 + side) * page_bytes_;
    };
    for (std::uint32_t layer = 0; layer < Llama8B::kLayers; ++layer) {
      for (std::uint32_t block = 0; block < kBlocks; ++block) {
        k.push_back(page(layer, block, 0));
        v.push_back(page(layer, block, 1));
      }
    }
    for (std::uint32_t first = 0; first < kBlocks; first += kStagedBlocks) {
      for (std::uint32_t layer = 0; layer < Llama8B::kLayers; ++layer) {
        for (std::uint32_t block = first; block < first + kStagedBlocks; ++block) {
          batch_k.push_back(page(layer, block, 0));
          batch_v.push_back(page(layer, block, 1));
        }
      }
    }
    k_pages_ = DeviceArray<void*>(k);
    v_pages_ = DeviceArray<void*>(v);
    batch_k_pages_ = DeviceArray<void*>(batch_k);
    batch_v_pages_ = DeviceArray<void*>(batch_v);
    fill_layers(load_layers_, 1, kBlocks, k_pages_.get(), v_pages_.get());
    fill_layers(pack_layers_, kBlocks / kStagedBlocks, kStagedBlocks, batch_k_pages_.get(),
                batch_v_pages_.get());
  }
  // Of `batches` of `blocks` blocks, one after the other.
  void fill_layers(std::vector<TransferLayer>& layers, std::uint32_t batches, std::uint32_t blocks,
                   void* const* k, void* const* v) const {
    for (std::uint32_t i = 0; i < batches * Llama8B::kLayers; ++i, k += blocks, v += blocks) {
      const LayerLayout layer = layout_.layer(i % Llama8B::kLayers);
      layers.push_back({layer, kernels::cuda::head_major(k, layer, false, DType::bf16),
                        kernels::cuda::head_major(v, layer, true, DType::bf16)});
    }
  }

  RecordLayout layout_;
  PinnedMemfd host_;
  DeviceArray<std::byte> staged_;
  std::size_t page_bytes_, pages_bytes_;
  DeviceArray<std::byte> pages_;
  DeviceArray<std::byte*> host_pointers_, staged_pointers_;
  DeviceArray<void*> k_pages_, v_pages_, batch_k_pages_, batch_v_pages_;
  std::vector<TransferLayer> load_layers_, pack_layers_;
};

double copy_rate(const Stream& stream, void* to, const void* from, std::size_t bytes,
                 cudaMemcpyKind kind) {
  const double seconds = gpu_seconds(stream, [&] {
    check(cudaMemcpyAsync(to, from, bytes, kind, stream.get()), "cudaMemcpyAsync");
  });
  return static_cast<double>(bytes) / seconds / kGiga;
}

// Adds a row of `bytes` a second against `limit` in GB/s.
template <typename Work>
void add_rate(Report& report, const char* name, const Stream& stream, std::size_t bytes,
              double limit, const Work& work) {
  const double seconds = gpu_seconds(stream, work);
  report.add(name, static_cast<double>(bytes) / seconds / kGiga, "GB/s", limit);
}

// From slots in no order to pages, dequantised by kernels that read host memory.
void measure_load(const Blocks& blocks, const Stream& stream, double limit, Report& report) {
  add_rate(report, "gpu.load.host_to_hbm.by_kernel", stream, blocks.payload_bytes(), limit, [&] {
    for (std::uint32_t layer = 0; layer < Llama8B::kLayers; ++layer) {
      kernels::cuda::gather_and_dequantise(blocks.load(layer, 1), stream.view());
    }
  });
}

// Records as they are, to where the pages are; whole, and the payload layer by layer.
void measure_copies(const Blocks& blocks, const Stream& stream, double limit, Report& report) {
  std::vector<std::byte*> targets;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    targets.push_back(blocks.pages() + i * blocks.record_bytes());
  }
  const DeviceArray<std::byte*> to(targets);
  const RecordLayout& layout = blocks.layout();
  add_rate(report, "gpu.copy_pieces.records", stream, kBlocks * blocks.record_bytes(), limit, [&] {
    kernels::cuda::copy_pieces(blocks.host_pointers(), to.get(), kBlocks, 0, blocks.record_bytes(),
                               kThreadBlocks, stream.view());
  });
  add_rate(report, "gpu.copy_pieces.layers", stream, blocks.payload_bytes(), limit, [&] {
    for (std::uint32_t layer = 0; layer < Llama8B::kLayers; ++layer) {
      kernels::cuda::copy_pieces(blocks.host_pointers(), to.get(), kBlocks,
                                 layout.k_offset(layer, 0), layout.layer_bytes, kThreadBlocks,
                                 stream.view());
    }
  });
}

// The packing alone, as fast as the GPU's memory allows; bytes read and written.
void measure_pack(const Blocks& blocks, const std::string& name, const Stream& stream,
                  Report& report) {
  const std::size_t half = std::size_t{1} << 30;
  const double copied =
      copy_rate(stream, blocks.pages() + half, blocks.pages(), half, cudaMemcpyDeviceToDevice);
  const double seconds = gpu_seconds(stream, [&] {
    for (std::uint32_t batch = 0; batch < kBlocks / kStagedBlocks; ++batch) {
      kernels::cuda::quantise_and_pack(blocks.pack(batch, batch % 2, 0), stream.view());
    }
  });
  const auto moved = static_cast<double>(blocks.pages_bytes() + blocks.payload_bytes());
  report.add(name, moved / seconds / kGiga, "GB/s", 2 * copied);
}

}  // namespace

void measure_transfers(Report& report) {
  const Blocks blocks(StorageFormat::fp8_e4m3);
  const Stream stream(Stream::Priority::normal);
  const std::size_t bytes = blocks.host().bytes();
  const double to_device =
      copy_rate(stream, blocks.pages(), blocks.host().host(), bytes, cudaMemcpyHostToDevice);
  measure_load(blocks, stream, to_device, report);
  measure_copies(blocks, stream, to_device, report);
  measure_pack(blocks, "gpu.quantise_and_pack", stream, report);
  for (const StorageFormat format : {StorageFormat::int8, StorageFormat::int4})
    measure_pack(Blocks(format), "gpu.quantise_and_pack." + std::string(name(format)), stream,
                 report);
}

}  // namespace kvtier::bench
