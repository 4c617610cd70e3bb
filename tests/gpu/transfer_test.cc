// Transfers between records and pages against the CPU twin, byte for byte.
#include "tests/gpu/transfer_fixture.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr StorageFormat kFormats[] = {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                      StorageFormat::bf16, StorageFormat::f32};
constexpr DType kPageTypes[] = {DType::f32, DType::f16, DType::bf16};

// Head sizes of models, and shapes whose heads do not begin at 16 bytes.
std::vector<KvShape> shapes() {
  std::vector<KvShape> result;
  for (const std::uint32_t head_dim : {64U, 96U, 128U, 256U}) {
    result.push_back({.kv_heads = 3, .head_dim_k = head_dim, .head_dim_v = head_dim});
  }
  result.push_back({.kv_heads = 2, .head_dim_k = 192, .head_dim_v = 128});
  result.push_back({.kv_heads = 3, .head_dim_k = 24, .head_dim_v = 8, .block_tokens = 4});
  result.push_back({.kv_heads = 1, .head_dim_k = 72, .head_dim_v = 40, .block_tokens = 1});
  result.push_back({.kv_heads = 5, .head_dim_k = 3, .head_dim_v = 5, .block_tokens = 2});
  result.push_back({.kv_heads = 2, .head_dim_k = 128, .head_dim_v = 64, .block_tokens = 64});
  return result;
}

std::string described(const TransferShape& shape) {
  return std::string(name(shape.kv.format)) + ", page type " +
         std::to_string(static_cast<int>(shape.page_type)) + ", " +
         std::to_string(shape.kv.kv_heads) + " x " + std::to_string(shape.kv.head_dim_k) + "/" +
         std::to_string(shape.kv.head_dim_v) + " x " + std::to_string(shape.kv.block_tokens) +
         (shape.records == Where::hbm ? ", in HBM" : ", in host memory");
}

class GpuTransfer : public GpuTest {
 protected:
  void expect_pack_like_the_twin(const TransferShape& shape, unsigned seed) {
    SCOPED_TRACE(described(shape));
    TransferBlocks blocks(shape);
    auto pages = blocks.random_pages(seed, true);
    auto records = blocks.records();
    blocks.set_pages(pages);
    run_as_graph([&] { quantise_and_pack(blocks.args(), stream()); });
    EXPECT_TRUE(same_bytes(blocks.pages(), pages));
    blocks.twin(records, pages, true);
    const auto got = blocks.records();
    if (has_scales(shape.kv.format)) {
      // Headers and other layers too: both began as the same poison.
      ASSERT_TRUE(same_bytes(got, records));
      return;
    }
    const DType stored = shape.kv.format == StorageFormat::f32 ? DType::f32 : DType::bf16;
    ASSERT_TRUE(same_elements(got.data(), records.data(), got.size() / bytes_of(stored), stored));
  }

  void expect_gather_like_the_twin(const TransferShape& shape, unsigned seed) {
    SCOPED_TRACE(described(shape));
    TransferBlocks blocks(shape);
    auto pages = blocks.random_pages(seed, true);
    auto records = blocks.records();
    blocks.twin(records, pages, true);
    blocks.set_records(records);
    std::fill(pages.begin(), pages.end(), TransferBlocks::kPagePoison);
    blocks.set_pages(pages);
    run_as_graph([&] { gather_and_dequantise(blocks.args(), stream()); });
    EXPECT_TRUE(same_bytes(blocks.records(), records));
    blocks.twin(records, pages, false);
    const auto got = blocks.pages();
    ASSERT_TRUE(same_elements(got.data(), pages.data(), got.size() / bytes_of(shape.page_type),
                              shape.page_type));
  }
};

TEST_F(GpuTransfer, PackedRecordsAreTheTwinsForEveryFormatAndShape) {
  unsigned seed = 1;
  for (const StorageFormat format : kFormats) {
    for (const DType page_type : kPageTypes) {
      for (KvShape kv : shapes()) {
        kv.format = format;
        expect_pack_like_the_twin({.kv = kv, .page_type = page_type, .first_layer = 1}, seed += 17);
      }
    }
  }
}

TEST_F(GpuTransfer, GatheredPagesAreTheTwinsForEveryFormatAndShape) {
  unsigned seed = 2;
  for (const StorageFormat format : kFormats) {
    for (const DType page_type : kPageTypes) {
      for (KvShape kv : shapes()) {
        kv.format = format;
        expect_gather_like_the_twin({.kv = kv, .page_type = page_type, .first_layer = 1},
                                    seed += 17);
      }
    }
  }
}

TEST_F(GpuTransfer, RecordsInPinnedHostMemory) {
  for (const StorageFormat format : kFormats) {
    const TransferShape shape{
        .kv = {.kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128, .format = format, .layers = 3},
        .blocks = 5,
        .layers = 3,
        .records = Where::pinned_host};
    expect_pack_like_the_twin(shape, 5);
    expect_gather_like_the_twin(shape, 6);
  }
}

TEST_F(GpuTransfer, SomeLayersWithFewThreadBlocks) {
  for (const std::uint32_t thread_blocks : {1U, 2U, 16U, 1000U}) {
    const TransferShape shape{
        .kv = {.kv_heads = 4, .head_dim_k = 64, .head_dim_v = 64, .layers = 6},
        .blocks = 37,
        .first_layer = 2,
        .layers = 3,
        .thread_blocks = thread_blocks,
        .records = thread_blocks == 2 ? Where::pinned_host : Where::hbm};
    expect_pack_like_the_twin(shape, 7);
    expect_gather_like_the_twin(shape, 8);
  }
}

// One head that holds every value of a 16-bit type up to a bound, so that every rounding and every
// tie of the conversion is met; with the bound as its largest magnitude the scale is 1.
TEST_F(GpuTransfer, EveryHalfIsRoundedAsTheTwinDoes) {
  for (const auto& [format, bound] :
       {std::pair{StorageFormat::fp8_e4m3, 448.0F}, std::pair{StorageFormat::fp8_e5m2, 57344.0F}}) {
    for (const DType page_type : {DType::f16, DType::bf16}) {
      for (const bool bounded : {true, false}) {
        const TransferShape shape{.kv = {.kv_heads = 1,
                                         .head_dim_k = 64,
                                         .head_dim_v = 64,
                                         .block_tokens = 1024,
                                         .format = format,
                                         .layers = 1},
                                  .page_type = page_type,
                                  .blocks = 1};
        SCOPED_TRACE(described(shape));
        auto values = unpacked(all_codes(page_type), page_type);
        for (float& value : values) {
          if (bounded && !(std::abs(value) <= bound)) value = bound;
        }
        const auto side = packed(values, page_type);
        TransferBlocks blocks(shape);
        auto pages = blocks.random_pages(1, false);
        std::memcpy(pages.data(), side.data(), side.size());
        std::memcpy(pages.data() + side.size(), side.data(), side.size());
        blocks.set_pages(pages);
        auto records = blocks.records();
        run_as_graph([&] { quantise_and_pack(blocks.args(), stream()); });
        blocks.twin(records, pages, true);
        float scale = 0;
        std::memcpy(&scale, records.data() + blocks.layout().scale_offset(0, false, 0), 4);
        EXPECT_EQ(scale == 1.0F, bounded);
        ASSERT_TRUE(same_bytes(blocks.records(), records));
      }
    }
  }
}

TEST_F(GpuTransfer, EveryStoredCodeIsReadAsTheTwinDoes) {
  for (const StorageFormat format : {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2}) {
    for (const DType page_type : kPageTypes) {
      const TransferShape shape{
          .kv = {.kv_heads = 4, .head_dim_k = 64, .head_dim_v = 64, .format = format, .layers = 1},
          .page_type = page_type,
          .blocks = 1};
      SCOPED_TRACE(described(shape));
      TransferBlocks blocks(shape);
      auto records = blocks.records();
      for (std::size_t i = 0; i < blocks.layout().payload_bytes; ++i) {
        records[blocks.layout().header_bytes + i] = static_cast<std::byte>(i % 256);
      }
      const float scales[8] = {1, 0.37F, 1e-38F, 3e33F, 1e-5F, 7.25F, 1.17549435e-38F, 7.5e35F};
      std::memcpy(records.data() + blocks.layout().scales_offset, scales, sizeof scales);
      blocks.set_records(records);
      auto pages = blocks.pages();
      run_as_graph([&] { gather_and_dequantise(blocks.args(), stream()); });
      blocks.twin(records, pages, false);
      const auto got = blocks.pages();
      ASSERT_TRUE(
          same_elements(got.data(), pages.data(), got.size() / bytes_of(page_type), page_type));
    }
  }
}

TEST_F(GpuTransfer, CopyPiecesCopiesTheNamedBytesAndNoOthers) {
  constexpr std::size_t kPiece = 10'000 * 16;
  for (const std::uint32_t thread_blocks : {0U, 3U, 16U}) {
    for (const auto& [offset, bytes] :
         {std::pair<std::size_t, std::size_t>{0, kPiece}, {4096, 32'768}, {16, 16}, {0, 0}}) {
      PinnedMemfd from(7 * kPiece);
      std::mt19937 random(9);
      for (std::size_t i = 0; i < from.bytes(); ++i)
        from.host()[i] = static_cast<std::byte>(random());
      Output<std::byte> to(7 * kPiece);
      std::vector<const std::byte*> sources;
      std::vector<std::byte*> targets;
      const std::size_t order[7] = {3, 6, 0, 5, 1, 4, 2};
      for (std::size_t i = 0; i < 7; ++i) {
        sources.push_back(from.device() + order[i] * kPiece);
        targets.push_back(to.get() + i * kPiece);
      }
      const DeviceArray<const std::byte*> device_sources(sources);
      const DeviceArray<std::byte*> device_targets(targets);
      run_as_graph([&] {
        copy_pieces(device_sources.get(), device_targets.get(), 7, offset, bytes, thread_blocks,
                    stream());
      });
      std::vector<std::byte> expected(7 * kPiece, std::byte{0xFF});
      for (std::size_t i = 0; i < 7; ++i) {
        std::memcpy(expected.data() + i * kPiece + offset, from.host() + order[i] * kPiece + offset,
                    bytes);
      }
      ASSERT_TRUE(same_bytes(to.values(), expected)) << offset << " + " << bytes;
    }
  }
}

}  // namespace
}  // namespace kvtier::kernels::cuda
