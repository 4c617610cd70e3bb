// The copy engine's ways between pinned host memory and the GPU, against the CPU twin.
#include "kernels/cuda/host_copies.h"

#include "tests/gpu/transfer_fixture.h"

namespace kvtier::kernels::cuda {
namespace {

class GpuHostCopies : public GpuTest {
 protected:
  // Groups of `layers_a_call` layers through a ring of `ring_bytes`.
  void expect_load_like_the_twin(TransferShape shape, std::uint32_t layers_a_call,
                                 std::size_t ring_bytes, unsigned seed) {
    shape.records = Where::pinned_host;
    TransferBlocks blocks(shape);
    auto pages = blocks.random_pages(seed, true);
    auto records = blocks.records();
    blocks.twin(records, pages, true);
    blocks.set_records(records);
    std::fill(pages.begin(), pages.end(), TransferBlocks::kPagePoison);
    blocks.set_pages(pages);
    std::vector<const std::byte*> addresses;
    for (std::uint32_t i = 0; i < shape.blocks; ++i) {
      addresses.push_back(blocks.records_on_device() + i * blocks.layout().record_bytes);
    }
    HostLoader loader(ring_bytes);
    const TransferArgs all = blocks.args();
    for (std::uint32_t layer = 0; layer < shape.layers; layer += layers_a_call) {
      TransferArgs args = all;
      args.first_layer += layer;
      args.layers = std::min(layers_a_call, shape.layers - layer);
      args.k_pages += std::size_t{layer} * shape.blocks;
      args.v_pages += std::size_t{layer} * shape.blocks;
      loader.load(args, addresses.data(), stream());
    }
    check(cudaStreamSynchronize(stream()), "HostLoader");
    blocks.twin(records, pages, false);
    const auto got = blocks.pages();
    ASSERT_TRUE(same_elements(got.data(), pages.data(), got.size() / bytes_of(shape.page_type),
                              shape.page_type));
  }
};

TEST_F(GpuHostCopies, LoadedPagesAreTheTwinsForEveryFormat) {
  for (const StorageFormat format : {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                     StorageFormat::bf16, StorageFormat::f32}) {
    for (const DType page_type : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(name(format));
      for (const KvShape& kv :
           {KvShape{
                .kv_heads = 4, .head_dim_k = 128, .head_dim_v = 64, .format = format, .layers = 4},
            KvShape{.kv_heads = 3,
            .head_dim_k = 3,
            .head_dim_v = 5,
            .block_tokens = 2,
            .format = format,
            .layers = 4}}) {
        expect_load_like_the_twin(
            {.kv = kv, .page_type = page_type, .blocks = 9, .first_layer = 1, .layers = 3}, 2,
            1U << 20, 41);
      }
    }
  }
}

// The parts of the ring are filled and drained many times over.
TEST_F(GpuHostCopies, LoadsThroughARingOfFewBlocksOrOneLayer) {
  const KvShape kv{.kv_heads = 4, .head_dim_k = 128, .head_dim_v = 128, .layers = 7};
  const std::size_t layer = kv.layout().layer_bytes;
  for (const std::size_t ring : {4 * layer + 4096, 14 * layer, 80 * layer, 8000 * layer}) {
    for (const std::uint32_t layers_a_call : {1U, 3U, 7U}) {
      expect_load_like_the_twin(
          {.kv = kv, .blocks = 150, .layers = 7, .thread_blocks = layers_a_call == 3 ? 16U : 0U},
          layers_a_call, ring, 42);
    }
  }
}

TEST_F(GpuHostCopies, TheEngineCopiesTheNamedBytesBothWays) {
  constexpr std::size_t kPiece = 50'000;
  constexpr std::uint32_t kCount = 300;  // several calls' worth
  PinnedMemfd host(kCount * kPiece);
  std::mt19937 random(43);
  for (std::size_t i = 0; i < host.bytes(); ++i) host.host()[i] = static_cast<std::byte>(random());
  const std::vector<std::byte> before(host.host(), host.host() + host.bytes());
  Output<std::byte> device(kCount * kPiece);
  std::vector<const std::byte*> from, back_from;
  std::vector<std::byte*> to, back_to;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const std::size_t slot = i * 7 % kCount;
    from.push_back(host.host() + slot * kPiece);
    to.push_back(device.get() + i * kPiece);
    back_from.push_back(device.get() + i * kPiece);
    back_to.push_back(host.host() + i * kPiece);
  }
  copy_pieces_by_engine(from.data(), to.data(), kCount, 100, 33'333, Direction::to_device,
                        stream());
  copy_pieces_by_engine(from.data(), to.data(), 0, 0, 5, Direction::to_device, stream());
  check(cudaStreamSynchronize(stream()), "copies to the device");
  std::vector<std::byte> expected(kCount * kPiece, std::byte{0xFF});
  for (std::size_t i = 0; i < kCount; ++i) {
    std::memcpy(expected.data() + i * kPiece + 100, before.data() + i * 7 % kCount * kPiece + 100,
                33'333);
  }
  ASSERT_TRUE(same_bytes(device.values(), expected));

  copy_pieces_by_engine(back_from.data(), back_to.data(), kCount, 100, 33'333, Direction::to_host,
                        stream());
  check(cudaStreamSynchronize(stream()), "copies to the host");
  std::vector<std::byte> host_expected = before;
  for (std::size_t i = 0; i < kCount; ++i) {
    std::memcpy(host_expected.data() + i * kPiece + 100, expected.data() + i * kPiece + 100,
                33'333);
  }
  EXPECT_TRUE(
      same_bytes(std::vector<std::byte>(host.host(), host.host() + host.bytes()), host_expected));
}

}  // namespace
}  // namespace kvtier::kernels::cuda
