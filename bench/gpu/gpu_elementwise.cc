#include <random>

#include "bench/gpu/gpu_commands.h"
#include "bench/gpu/gpu_shape.h"
#include "bench/gpu/gpu_timing.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"

namespace kvtier::bench {
namespace {

using kernels::cuda::Bf16;
using kernels::cuda::check;
using kernels::cuda::DeviceArray;
using kernels::cuda::ExactPage;
using kernels::cuda::SampleRow;
using kernels::cuda::Stream;

constexpr std::size_t kRows = 8192;

// Arrays of a BF16 small number, of zeros, of numbers; `Bytes` sets every byte.
template <typename T>
DeviceArray<T> filled(std::size_t count, int byte) {
  DeviceArray<T> array(count);
  array.fill_bytes(byte);
  return array;
}

DeviceArray<std::uint32_t> numbers(std::size_t count, std::uint32_t step, std::uint32_t modulus) {
  std::vector<std::uint32_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<std::uint32_t>(i * step) % modulus;
  return DeviceArray<std::uint32_t>(values);
}

// Adds rows of bytes read and written a second, held against a copy inside the GPU's memory.
class MemoryBound {
 public:
  MemoryBound(const Stream& stream, Report& report) : stream_(stream), report_(report) {
    constexpr std::size_t kBytes = std::size_t{1} << 30;
    auto from = filled<std::byte>(kBytes, 1);
    DeviceArray<std::byte> to(kBytes);
    const double seconds = gpu_seconds(stream, [&] {
      check(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice, stream.get()),
            "cudaMemcpyAsync");
    });
    limit_ = 2 * static_cast<double>(kBytes) / seconds / kGiga;
  }

  template <typename Work>
  void add(const char* name, std::size_t bytes, const Work& work) {
    const double seconds = gpu_seconds(stream_, work, 10);
    report_.add(name, static_cast<double>(bytes) / seconds / kGiga, "GB/s", limit_);
  }

 private:
  const Stream& stream_;
  Report& report_;
  double limit_ = 0;
};

void measure_rows(const Stream& stream, MemoryBound& bound) {
  constexpr std::size_t kHidden = Llama8B::kHidden;
  constexpr std::size_t kInner = Llama8B::kInner;
  const auto residual = filled<float>(kRows * kHidden, 0x3C);
  const auto delta = filled<Bf16>(kRows * kHidden, 0);
  const auto weight = filled<float>(kHidden, 0x3C);
  const auto out = filled<Bf16>(kRows * kHidden, 0);
  bound.add("gpu.add_rms_norm", kRows * kHidden * (4 + 2 + 4 + 2), [&] {
    kernels::cuda::add_rms_norm(residual.get(), delta.get(), weight.get(), out.get(), kRows,
                                kHidden, 1e-5F, stream.view());
  });
  const auto gate_up = filled<Bf16>(kRows * 2 * kInner, 0x3C);
  const auto inner = filled<Bf16>(kRows * kInner, 0);
  bound.add("gpu.swiglu", kRows * kInner * 3 * sizeof(Bf16), [&] {
    kernels::cuda::swiglu(gate_up.get(), inner.get(), kRows, kInner, stream.view());
  });
  const auto table = filled<Bf16>(std::size_t{Llama8B::kVocabulary} * kHidden, 0x3C);
  const auto ids = numbers(kRows, 7919, Llama8B::kVocabulary);
  bound.add("gpu.embed", kRows * kHidden * (2 + 4), [&] {
    kernels::cuda::embed(ids.get(), table.get(), residual.get(), kRows, kHidden, stream.view());
  });
}

// One layer of kRows tokens: from the projection to the exact pages, to records, and back.
void measure_blocks(const Stream& stream, MemoryBound& bound) {
  constexpr std::uint32_t kBlocks = kRows / Llama8B::kBlockTokens;
  constexpr std::uint32_t kHeadsAll = Llama8B::kHeads + 2 * Llama8B::kKvHeads;
  constexpr std::size_t kPage =
      std::size_t{2} * Llama8B::kKvHeads * Llama8B::kBlockTokens * Llama8B::kHeadDim;
  const RecordLayout layout = Llama8B::layout();
  const auto pages = filled<Bf16>(kBlocks * kPage, 0);
  const auto records = filled<std::byte>(kBlocks * layout.record_bytes, 0);
  std::vector<ExactPage> table;
  std::vector<std::byte*> record_table;
  std::vector<std::uint32_t> row_pages, zeros(kRows, 0);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    table.push_back({pages.get() + i * kPage, 0});
    record_table.push_back(records.get() + i * layout.record_bytes);
  }
  for (std::uint32_t i = 0; i < kRows; ++i) row_pages.push_back(i / Llama8B::kBlockTokens);
  const DeviceArray<ExactPage> page_table(table);
  const DeviceArray<std::byte*> device_records(record_table);
  const DeviceArray<std::uint32_t> device_row_pages(row_pages), sequences(zeros);
  const auto positions = numbers(kRows, 1, kRows);
  const auto completed = numbers(kBlocks, 1, kBlocks);
  const auto qkv = filled<Bf16>(kRows * kHeadsAll * Llama8B::kHeadDim, 0x3C);
  const auto q = filled<Bf16>(kRows * Llama8B::kHeads * Llama8B::kHeadDim, 0);
  const auto frequencies = filled<float>(Llama8B::kHeadDim / 2, 0x3C);
  const kernels::cuda::StoreKvArgs args{.step = {.rows = kRows,
                                                 .positions = positions.get(),
                                                 .row_sequence = sequences.get(),
                                                 .row_page = device_row_pages.get(),
                                                 .pages = page_table.get(),
                                                 .block_tables = nullptr},
                                        .heads = Llama8B::kHeads,
                                        .kv_heads = Llama8B::kKvHeads,
                                        .head_dim = Llama8B::kHeadDim,
                                        .qkv = qkv.get(),
                                        .q = q.get(),
                                        .inverse_frequencies = frequencies.get()};
  bound.add("gpu.store_kv", 2 * qkv.bytes(), [&] { kernels::cuda::store_kv(args, stream.view()); });
  bound.add("gpu.quantise_pages", kBlocks * kPage * (2 + 1), [&] {
    kernels::cuda::quantise_pages(layout, 0, page_table.get(), completed.get(),
                                  device_records.get(), kBlocks, stream.view());
  });
  const auto k = filled<Bf16>(kBlocks * kPage / 2, 0);
  const auto v = filled<Bf16>(kBlocks * kPage / 2, 0);
  bound.add("gpu.gather_stored", kBlocks * kPage * (2 + 1), [&] {
    kernels::cuda::gather_stored(layout, 0, device_records.get(), 0, kBlocks, k.get(), v.get(),
                                 kRows, stream.view());
  });
}

void measure_sample(const Stream& stream, Report& report) {
  constexpr std::size_t kRowsMax = 64;
  constexpr std::size_t kVocabulary = Llama8B::kVocabulary;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(kRowsMax * kVocabulary);
  for (float& logit : logits) logit = normal(random);
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<std::uint32_t> tokens(kRowsMax);
  const DeviceArray<std::byte> workspace(
      kernels::cuda::sample_workspace_bytes(kRowsMax, kVocabulary));
  const std::pair<const char*, SampleRow> kinds[] = {
      {"greedy", {}},
      {"temperature", {.temperature = 1, .uniform = 0.7}},
      {"top_k_top_p", {.temperature = 1, .top_k = 50, .top_p = 0.9F, .uniform = 0.7}}};
  for (const auto& [kind, row] : kinds) {
    const DeviceArray<SampleRow> rows(std::vector<SampleRow>(kRowsMax, row));
    for (const std::size_t count : {std::size_t{1}, kRowsMax}) {
      const double seconds = gpu_seconds(
          stream,
          [&] {
            kernels::cuda::sample(device_logits.get(), rows.get(), tokens.get(), count, kVocabulary,
                                  workspace.get(), stream.view());
          },
          20);
      report.add("gpu.sample." + std::string(kind) + ".rows_" + std::to_string(count),
                 seconds * 1e6, "us");
    }
  }
}

}  // namespace

void measure_elementwise(Report& report) {
  const Stream stream(Stream::Priority::normal);
  MemoryBound bound(stream, report);
  measure_rows(stream, bound);
  measure_blocks(stream, bound);
  measure_sample(stream, report);
}

}  // namespace kvtier::bench
