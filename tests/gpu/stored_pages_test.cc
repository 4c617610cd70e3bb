// The engine's own way: exact pages to records, and records to the K and V that prefill reads.
#include "tests/gpu/transfer_fixture.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr StorageFormat kFormats[] = {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                      StorageFormat::bf16, StorageFormat::f32};

class GpuStoredPages : public GpuTest {};

TEST_F(GpuStoredPages, QuantisePagesWritesTheTwinsRecords) {
  for (const StorageFormat format : kFormats) {
    for (const std::uint32_t head_dim : {64U, 96U, 128U, 256U}) {
      for (const bool whole_page : {true, false}) {
        const TransferShape shape{.kv = {.kv_heads = 5,
                                         .head_dim_k = head_dim,
                                         .head_dim_v = head_dim,
                                         .format = format,
                                         .layers = 3},
                                  .blocks = 4,
                                  .first_layer = 1};
        SCOPED_TRACE(std::string(name(format)) + ", head size " + std::to_string(head_dim));
        TransferBlocks blocks(shape);  // one layer of pages: K and V of a piece together
        auto values = blocks.random_pages(head_dim, true);
        auto records = blocks.records();
        const std::uint64_t layer_elements =
            std::uint64_t{2} * shape.kv.kv_heads * kTileTokens * head_dim;

        // Pages of all layers hold theirs at layer 1 and NaN elsewhere.
        const std::uint64_t stride = whole_page ? layer_elements : 0;
        const std::uint64_t page_elements = whole_page ? 3 * layer_elements : layer_elements;
        DeviceArray<Bf16> memory(5 * page_elements);
        memory.fill_bytes(0xFF);
        std::vector<ExactPage> table;
        for (int i = 0; i < 5; ++i) table.push_back({memory.get() + i * page_elements, stride});
        const std::vector<std::uint32_t> completed{4, 0, 1, 2};
        std::vector<std::byte*> targets;
        for (std::uint32_t i = 0; i < 4; ++i) {
          check(cudaMemcpy(memory.get() + completed[i] * page_elements + stride,
                           values.data() + i * layer_elements * 2, layer_elements * 2,
                           cudaMemcpyHostToDevice),
                "cudaMemcpy");
          targets.push_back(blocks.records_on_device() + i * blocks.layout().record_bytes);
        }
        targets[2] = nullptr;  // passed over
        const DeviceArray<ExactPage> pages(table);
        const DeviceArray<std::uint32_t> device_completed(completed);
        const DeviceArray<std::byte*> device_targets(targets);
        run_as_graph([&] {
          quantise_pages(blocks.layout(), 1, pages.get(), device_completed.get(),
                         device_targets.get(), 4, stream());
        });
        const std::vector<std::byte> untouched(blocks.layout().record_bytes,
                                               TransferBlocks::kRecordPoison);
        blocks.twin(records, values, true);
        std::copy(untouched.begin(), untouched.end(),
                  records.begin() + 2 * static_cast<std::ptrdiff_t>(untouched.size()));
        ASSERT_TRUE(same_bytes(blocks.records(), records));
      }
    }
  }
}

TEST_F(GpuStoredPages, GatherStoredPlacesEveryBlockByHead) {
  for (const StorageFormat format : kFormats) {
    for (const std::uint32_t head_dim : {64U, 96U, 128U, 256U}) {
      const TransferShape shape{.kv = {.kv_heads = 3,
                                       .head_dim_k = head_dim,
                                       .head_dim_v = head_dim,
                                       .format = format,
                                       .layers = 2},
                                .blocks = 9,
                                .first_layer = 1,
                                .records = head_dim == 96 ? Where::pinned_host : Where::hbm};
      SCOPED_TRACE(std::string(name(format)) + ", head size " + std::to_string(head_dim));
      TransferBlocks blocks(shape);
      auto values = blocks.random_pages(head_dim + 1, true);
      auto records = blocks.records();
      blocks.twin(records, values, true);
      blocks.set_records(records);
      blocks.twin(records, values, false);  // the stored values, rounded to BF16

      constexpr std::uint32_t kFirst = 2, kCount = 6;  // of the nine
      constexpr std::uint64_t kStride = 10 * kTileTokens;
      const std::size_t head_elements = kStride * head_dim;
      Output<Bf16> k(3 * head_elements), v(3 * head_elements);
      run_as_graph([&] {
        gather_stored(blocks.layout(), 1, blocks.record_pointers(), kFirst, kCount, k.get(),
                      v.get(), kStride, stream());
      });
      std::vector<Bf16> expected[2];
      const std::size_t tile = std::size_t{kTileTokens} * head_dim;
      for (std::size_t side = 0; side < 2; ++side) {
        expected[side].resize(3 * head_elements);
        std::memset(static_cast<void*>(expected[side].data()), 0xFF,
                    expected[side].size() * sizeof(Bf16));
        for (std::size_t block = kFirst; block < kFirst + kCount; ++block) {
          for (std::size_t head = 0; head < 3; ++head) {
            std::memcpy(static_cast<void*>(expected[side].data() + head * head_elements +
                                           (block - kFirst) * tile),
                        values.data() + ((block * 2 + side) * 3 + head) * tile * 2, tile * 2);
          }
        }
        const auto got = (side == 0 ? k : v).values();
        ASSERT_TRUE(same_elements(reinterpret_cast<const std::byte*>(got.data()),
                                  reinterpret_cast<const std::byte*>(expected[side].data()),
                                  got.size(), DType::bf16));
      }
    }
  }
}

}  // namespace
}  // namespace kvtier::kernels::cuda
