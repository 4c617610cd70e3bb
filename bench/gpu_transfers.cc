#include <algorithm>
#include <numeric>
#include <random>

#include "bench/gpu_commands.h"
#include "bench/gpu_shape.h"
#include "bench/gpu_timing.h"
#include "kernels/cuda/memory.h"

namespace kvtier::bench {
namespace {

using kernels::cuda::check;
using kernels::cuda::DeviceArray;
using kernels::cuda::PinnedMemfd;
using kernels::cuda::TransferArgs;

constexpr std::uint32_t kBlocks = 1024;      // 16,384 tokens
constexpr std::uint32_t kThreadBlocks = 16;  // few multiprocessors: the rest computes
constexpr std::uint32_t kStagedBlocks = 64;  // records in HBM on their way to the host
constexpr double kGiga = 1e9;

// Records of kBlocks blocks in pinned host memory, in slots in random order, and their BF16 pages.
class Blocks {
 public:
  Blocks()
      : layout_(Llama8B::layout()),
        host_(kBlocks * layout_.record_bytes),
        staged_(2 * kStagedBlocks * layout_.record_bytes),
        page_bytes_(std::size_t{Llama8B::kKvHeads} * Llama8B::kBlockTokens * Llama8B::kHeadDim * 2),
        pages_(std::size_t{2} * Llama8B::kLayers * kBlocks * page_bytes_) {
    std::vector<std::uint32_t> slots(kBlocks);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(1));
    std::vector<std::byte*> on_device;
    for (const std::uint32_t slot : slots) {
      host_records_.push_back(host_.host() + slot * layout_.record_bytes);
      on_device.push_back(host_.device() + slot * layout_.record_bytes);
    }
    host_pointers_ = DeviceArray<std::byte*>(on_device);
    for (std::uint32_t i = 0; i < 2 * kStagedBlocks; ++i) {
      staged_records_.push_back(staged_.get() + i * layout_.record_bytes);
    }
    staged_pointers_ = DeviceArray<std::byte*>(staged_records_);
    pages_.fill_bytes(0x3C);  // a small BF16 number everywhere
    fill_page_tables();
  }

  // All blocks' pages and their records in host memory.
  TransferArgs load(std::uint32_t first_layer, std::uint32_t layers) const {
    return {.layout = layout_,
            .first_layer = first_layer,
            .layers = layers,
            .blocks = kBlocks,
            .records = host_pointers_.get(),
            .k_pages = k_pages_.get() + std::size_t{first_layer} * kBlocks,
            .v_pages = v_pages_.get() + std::size_t{first_layer} * kBlocks,
            .thread_blocks = kThreadBlocks};
  }
  // The pages of one batch of kStagedBlocks blocks, and half `half` of the records in HBM.
  TransferArgs pack(std::uint32_t batch, std::uint32_t half, std::uint32_t thread_blocks) const {
    const std::size_t first = std::size_t{batch} * kStagedBlocks * Llama8B::kLayers;
    return {.layout = layout_,
            .layers = Llama8B::kLayers,
            .blocks = kStagedBlocks,
            .records = staged_pointers_.get() + std::size_t{half} * kStagedBlocks,
            .k_pages = batch_k_pages_.get() + first,
            .v_pages = batch_v_pages_.get() + first,
            .thread_blocks = thread_blocks};
  }

  std::size_t payload_bytes() const { return kBlocks * layout_.payload_bytes; }
  std::size_t record_bytes() const { return layout_.record_bytes; }
  std::byte* host_record(std::uint32_t block) const { return host_records_[block]; }
  std::byte* const* host_pointers() const { return host_pointers_.get(); }
  std::byte* staged_record(std::uint32_t half, std::uint32_t i) const {
    return staged_records_[half * kStagedBlocks + i];
  }
  const PinnedMemfd& host() const { return host_; }
  std::byte* pages() const { return pages_.get(); }
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
  }

  RecordLayout layout_;
  PinnedMemfd host_;
  DeviceArray<std::byte> staged_;
  std::size_t page_bytes_;
  DeviceArray<std::byte> pages_;
  std::vector<std::byte*> host_records_, staged_records_;
  DeviceArray<std::byte*> host_pointers_, staged_pointers_;
  DeviceArray<void*> k_pages_, v_pages_, batch_k_pages_, batch_v_pages_;
};

double copy_rate(const GpuStream& stream, void* to, const void* from, std::size_t bytes,
                 cudaMemcpyKind kind) {
  const double seconds = gpu_seconds(stream, [&] {
    check(cudaMemcpyAsync(to, from, bytes, kind, stream.get()), "cudaMemcpyAsync");
  });
  return static_cast<double>(bytes) / seconds / kGiga;
}

// Packs batch by batch into the two halves of the staged records, while the copy engine takes the
// other half to the host, record by record.
class WriteBack {
 public:
  explicit WriteBack(const Blocks& blocks) : blocks_(blocks) {}

  void run(const GpuStream& stream) {
    for (std::uint32_t batch = 0; batch < kBlocks / kStagedBlocks; ++batch) {
      const std::uint32_t half = batch % 2;
      if (batch >= 2) copied_[half].wait_on(stream.get());
      kernels::cuda::quantise_and_pack(blocks_.pack(batch, half, kThreadBlocks), stream.get());
      packed_[half].record(stream.get());
      packed_[half].wait_on(copies_.get());
      for (std::uint32_t i = 0; i < kStagedBlocks; ++i) {
        check(cudaMemcpyAsync(blocks_.host_record(batch * kStagedBlocks + i),
                              blocks_.staged_record(half, i), blocks_.record_bytes(),
                              cudaMemcpyDeviceToHost, copies_.get()),
              "cudaMemcpyAsync");
      }
      copied_[half].record(copies_.get());
    }
    copied_[0].wait_on(stream.get());
    copied_[1].wait_on(stream.get());
  }

 private:
  const Blocks& blocks_;
  GpuStream copies_;
  GpuEvent packed_[2], copied_[2];
};

void measure_load(const Blocks& blocks, const GpuStream& stream, double limit, Report& report) {
  const auto bytes = static_cast<double>(blocks.payload_bytes());
  const double at_once = gpu_seconds(stream, [&] {
    kernels::cuda::gather_and_dequantise(blocks.load(0, Llama8B::kLayers), stream.get());
  });
  report.add("gpu.load.host_to_hbm", bytes / at_once / kGiga, "GB/s", limit);
  const double by_layer = gpu_seconds(stream, [&] {
    for (std::uint32_t layer = 0; layer < Llama8B::kLayers; ++layer) {
      kernels::cuda::gather_and_dequantise(blocks.load(layer, 1), stream.get());
    }
  });
  report.add("gpu.load.host_to_hbm_by_layer", bytes / by_layer / kGiga, "GB/s", limit);
}

void measure_copy_pieces(const Blocks& blocks, const GpuStream& stream, double limit,
                         Report& report) {
  // Whole records, from host memory to where the pages are.
  std::vector<std::byte*> targets;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    targets.push_back(blocks.pages() + i * blocks.record_bytes());
  }
  const DeviceArray<std::byte*> to(targets);
  const double records = gpu_seconds(stream, [&] {
    kernels::cuda::copy_pieces(blocks.host_pointers(), to.get(), kBlocks, 0, blocks.record_bytes(),
                               kThreadBlocks, stream.get());
  });
  report.add("gpu.copy_pieces.records",
             static_cast<double>(kBlocks * blocks.record_bytes()) / records / kGiga, "GB/s", limit);
  const double layers = gpu_seconds(stream, [&] {
    for (std::uint32_t layer = 0; layer < Llama8B::kLayers; ++layer) {
      kernels::cuda::copy_pieces(blocks.host_pointers(), to.get(), kBlocks,
                                 blocks.layout().k_offset(layer, 0), blocks.layout().layer_bytes,
                                 kThreadBlocks, stream.get());
    }
  });
  report.add("gpu.copy_pieces.by_layer",
             static_cast<double>(blocks.payload_bytes()) / layers / kGiga, "GB/s", limit);
}

// The packing alone, as fast as the GPU's memory allows; bytes read and written.
void measure_pack(const Blocks& blocks, const GpuStream& stream, Report& report) {
  const std::size_t half = std::size_t{1} << 30;
  const double copied =
      copy_rate(stream, blocks.pages() + half, blocks.pages(), half, cudaMemcpyDeviceToDevice);
  const double seconds = gpu_seconds(stream, [&] {
    for (std::uint32_t batch = 0; batch < kBlocks / kStagedBlocks; ++batch) {
      kernels::cuda::quantise_and_pack(blocks.pack(batch, batch % 2, 0), stream.get());
    }
  });
  report.add("gpu.quantise_and_pack",
             3 * static_cast<double>(blocks.payload_bytes()) / seconds / kGiga, "GB/s", 2 * copied);
}

}  // namespace

void measure_transfers(Report& report) {
  const Blocks blocks;
  const GpuStream stream;
  const std::size_t bytes = blocks.host().bytes();
  const double to_device =
      copy_rate(stream, blocks.pages(), blocks.host().host(), bytes, cudaMemcpyHostToDevice);
  const double to_host =
      copy_rate(stream, blocks.host().host(), blocks.pages(), bytes, cudaMemcpyDeviceToHost);
  WriteBack write_back(blocks);
  const double seconds = gpu_seconds(stream, [&] { write_back.run(stream); });
  report.add("gpu.write_back.hbm_to_host",
             static_cast<double>(kBlocks * blocks.record_bytes()) / seconds / kGiga, "GB/s",
             to_host);
  measure_load(blocks, stream, to_device, report);  // of the records written back
  measure_copy_pieces(blocks, stream, to_device, report);
  measure_pack(blocks, stream, report);
}

}  // namespace kvtier::bench
