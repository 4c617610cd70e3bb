// Transfers between records and pages of pools against the CPU twin, byte for byte: strides of
// every kind, pages smaller than blocks, sides that are absent, layers that differ, rows that begin
// anywhere.
#include <algorithm>
#include <numeric>

#include "tests/gpu/gpu_test.h"
#include "tests/gpu/transfer_fixture.h"

namespace kvtier::kernels::cuda {
namespace {

// One side of a layer in a pool, with room between its parts.
struct SideStrides {
  std::size_t page = 0, token = 0, head = 0;
};
enum class Order : std::uint8_t { token_major, head_major };

struct PoolCase {
  std::vector<LayerShape> layers;  // their formats are the test's, unless they are raw
  std::uint32_t block_tokens = 16;
  std::uint32_t page_tokens = 16;
  Order order = Order::token_major;
  std::size_t row_gap = 0;  // elements between rows
  std::size_t base = 0;     // elements before the first page
  DType type = DType::bf16;
  std::uint32_t blocks = 5;
  std::uint32_t thread_blocks = 0;
};

constexpr std::byte kPoison{0x5A};
constexpr std::size_t kManyLayers = 37;  // more than one launch takes

// Pools of all layers one after the other in one piece of memory, on the GPU and on the CPU, and
// records of the same blocks.
class PoolBlocks {
 public:
  PoolBlocks(const PoolCase& of, StorageFormat format)
      : case_(of), layers_(layer_layouts(namespace_of(of, format))) {
    const Namespace ns = namespace_of(of, format);
    record_bytes_ = RecordLayout::of(ns).record_bytes;
    pages_ = of.blocks * (of.block_tokens / of.page_tokens) + 3;
    std::vector<std::uint32_t> numbers(pages_);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::ranges::shuffle(numbers, std::mt19937(3));
    numbers.resize(numbers.size() - 3);
    numbers_ = numbers;
    device_numbers_ = DeviceArray<std::uint32_t>(numbers);
    lay_out();
    pool_ = DeviceArray<std::byte>(pool_bytes_);
    records_ = DeviceArray<std::byte>(of.blocks * record_bytes_);
    std::vector<std::byte*> pointers;
    for (std::uint32_t i = 0; i < of.blocks; ++i)
      pointers.push_back(records_.get() + i * record_bytes_);
    record_pointers_ = DeviceArray<std::byte*>(pointers);
    for (std::size_t l = 0; l < layers_.size(); ++l)
      places_.push_back({layers_[l], side(l, false, pool_.get()), side(l, true, pool_.get())});
  }

  TransferArgs args() const {
    return {.layers = places_,
            .blocks = case_.blocks,
            .records = record_pointers_.get(),
            .page_type = case_.type,
            .page_tokens = case_.page_tokens,
            .numbers = device_numbers_.get(),
            .thread_blocks = case_.thread_blocks};
  }
  std::size_t pool_bytes() const { return pool_bytes_; }
  std::size_t records_bytes() const { return case_.blocks * record_bytes_; }
  DeviceArray<std::byte>& pool() { return pool_; }
  DeviceArray<std::byte>& records() { return records_; }

  void twin(std::vector<std::byte>& pool, std::vector<std::byte>& records, bool store) const {
    std::vector<std::byte*> pointers;
    for (std::uint32_t i = 0; i < case_.blocks; ++i)
      pointers.push_back(records.data() + i * record_bytes_);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (layers_[l].format == StorageFormat::raw) {
        copy_raw(l, pool.data(), pointers, store);
        continue;
      }
      const BlockLayerArgs args{.layout = &layers_[l],
                                .blocks = case_.blocks,
                                .page_tokens = case_.page_tokens,
                                .page_type = case_.type,
                                .k = cpu_side(l, false, pool.data()),
                                .v = cpu_side(l, true, pool.data()),
                                .records = pointers.data()};
      const KernelTable& cpu = cpu_kernels();
      store ? cpu.quantise_and_scatter(args) : cpu.gather_and_dequantise(args);
    }
  }

 private:
  static Namespace namespace_of(const PoolCase& of, StorageFormat format) {
    Namespace ns;
    ns.model = "pools";
    ns.layers = static_cast<std::uint32_t>(of.layers.size());
    ns.block_tokens = of.block_tokens;
    for (LayerShape shape : of.layers) {
      if (shape.format != StorageFormat::raw) shape.format = format;
      if (shape.format == StorageFormat::raw) {
        shape.raw_bytes =
            static_cast<std::uint32_t>(of.block_tokens * shape.kv_heads *
                                       (shape.head_dim_k + shape.head_dim_v) * bytes_of(of.type));
      }
      ns.layer_shapes.push_back(shape);
    }
    return ns;
  }
  std::uint32_t dim(std::size_t layer, bool v) const {
    const LayerShape& shape = case_.layers[layer];
    return v ? shape.head_dim_v : shape.head_dim_k;
  }

  void lay_out() {
    const std::size_t element = bytes_of(case_.type);
    std::size_t at = case_.base * element;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      for (const bool v : {false, true}) {
        const std::size_t heads = case_.layers[l].kv_heads;
        const std::size_t row = dim(l, v) * element + case_.row_gap * element;
        const bool by_head = case_.order == Order::head_major;
        const SideStrides strides{.page = row * heads * case_.page_tokens + case_.row_gap * element,
                                  .token = by_head ? row : row * heads,
                                  .head = by_head ? row * case_.page_tokens : row};
        strides_.push_back(strides);
        bases_.push_back(at);
        at += strides.page * pages_;
      }
    }
    pool_bytes_ = at + 64;
  }

  TransferSide side(std::size_t layer, bool v, std::byte* pool) const {
    if (dim(layer, v) == 0) return {};
    const SideStrides& strides = strides_[2 * layer + (v ? 1 : 0)];
    TransferSide side{.base = pool + bases_[2 * layer + (v ? 1 : 0)],
                      .page_stride = strides.page,
                      .token_stride = strides.token,
                      .head_stride = strides.head};
    if (layers_[layer].format != StorageFormat::raw) return side;
    // Rows of one head of one token, in the order in which they lie.
    side.rows = case_.page_tokens * case_.layers[layer].kv_heads;
    side.row_bytes = static_cast<std::uint32_t>(dim(layer, v) * bytes_of(case_.type));
    side.token_stride = std::min(strides.token, strides.head);
    return side;
  }
  PageSide cpu_side(std::size_t layer, bool v, std::byte* pool) const {
    const TransferSide of = side(layer, v, pool);
    return {.base = of.base,
            .page_stride = of.page_stride,
            .numbers = numbers_.data(),
            .token_stride = of.token_stride,
            .head_stride = of.head_stride};
  }
  void copy_raw(std::size_t layer, std::byte* pool, const std::vector<std::byte*>& records,
                bool store) const {
    const std::uint32_t pages = case_.block_tokens / case_.page_tokens;
    for (std::uint32_t block = 0; block < case_.blocks; ++block) {
      std::byte* record = records[block] + layers_[layer].offset;
      for (const bool v : {false, true}) {
        const TransferSide of = side(layer, v, pool);
        for (std::uint32_t row = 0; row < pages * of.rows; ++row, record += of.row_bytes) {
          std::byte* page = of.base + numbers_[block * pages + row / of.rows] * of.page_stride +
                            row % of.rows * of.token_stride;
          std::memcpy(store ? record : page, store ? page : record, of.row_bytes);
        }
      }
    }
  }

  const PoolCase case_;
  const std::vector<LayerLayout> layers_;
  std::size_t record_bytes_ = 0;
  std::uint32_t pages_ = 0;
  std::size_t pool_bytes_ = 0;
  std::vector<SideStrides> strides_;
  std::vector<std::size_t> bases_;
  std::vector<std::uint32_t> numbers_;
  DeviceArray<std::uint32_t> device_numbers_;
  DeviceArray<std::byte> pool_, records_;
  DeviceArray<std::byte*> record_pointers_;
  std::vector<TransferLayer> places_;
};

LayerShape heads(std::uint32_t count, std::uint32_t dim_k, std::uint32_t dim_v) {
  return {count, dim_k, dim_v, StorageFormat::fp8_e4m3, 0};
}
LayerShape raw_heads(std::uint32_t count, std::uint32_t dim_k, std::uint32_t dim_v) {
  return {count, dim_k, dim_v, StorageFormat::raw, 0};
}

std::vector<PoolCase> cases() {
  const std::vector<LayerShape> alike(3, heads(4, 64, 64));
  std::vector<PoolCase> all{
      {.layers = alike},
      {.layers = alike, .order = Order::head_major},
      {.layers = alike, .page_tokens = 4, .order = Order::head_major, .row_gap = 16},
      {.layers = alike, .page_tokens = 1},
      {.layers = alike, .row_gap = 8, .base = 8, .thread_blocks = 2},
      {.layers = alike, .base = 1},     // rows at no multiple of 16 bytes
      {.layers = alike, .row_gap = 2},  // nor strides
      {.layers = std::vector(2, heads(1, 576, 0)), .page_tokens = 8},
      // Rows of a power of two of chunks in pages of whole groups of tokens.
      {.layers = std::vector(18, heads(2, 128, 128)), .row_gap = 8},
      {.layers = std::vector(2, heads(3, 128, 0)),
       .block_tokens = 64,
       .page_tokens = 32,
       .order = Order::head_major},
      {.layers = std::vector(2, heads(2, 256, 256)), .block_tokens = 48, .page_tokens = 48},
      {.layers = std::vector(2, heads(2, 128, 64))},
      {.layers = std::vector(2, heads(3, 192, 128)), .block_tokens = 64, .page_tokens = 16},
      {.layers = {heads(2, 5, 3), heads(2, 5, 3)}, .block_tokens = 3, .page_tokens = 1},
      {.layers = {heads(4, 64, 64), heads(4, 64, 64), raw_heads(2, 24, 8), heads(1, 40, 0),
                  heads(4, 64, 64), raw_heads(1, 3, 0), heads(1, 7, 7)},
       .block_tokens = 4,
       .page_tokens = 2},
      {.layers = {raw_heads(1, 3, 0), heads(1, 7, 7)}, .block_tokens = 1, .page_tokens = 1},
      {.layers = std::vector<LayerShape>(kManyLayers, heads(1, 16, 16)), .blocks = 2},
  };
  return all;
}

class GpuPools : public GpuTest, public testing::WithParamInterface<StorageFormat> {
 protected:
  void expect_like_the_twin(const PoolCase& of, unsigned seed) {
    PoolBlocks blocks(of, GetParam());
    // Elements of every kind at the place of every element of the pool.
    auto pool =
        random_heads(16, blocks.pool_bytes() / bytes_of(of.type) / 16 + 1, of.type, seed, false);
    pool.resize(blocks.pool_bytes());
    const auto before = pool;
    blocks.pool().upload(pool);
    std::vector<std::byte> records(blocks.records_bytes(), kPoison);
    blocks.records().upload(records);
    run_as_graph([&] { quantise_and_pack(blocks.args(), stream()); });
    blocks.twin(pool, records, true);
    EXPECT_TRUE(same_bytes(blocks.records().download(), records));
    EXPECT_TRUE(same_bytes(blocks.pool().download(), before));

    blocks.records().upload(records);
    std::ranges::fill(pool, kPoison);
    blocks.pool().upload(pool);
    run_as_graph([&] { gather_and_dequantise(blocks.args(), stream()); });
    TransferArgs near = blocks.args();
    near.on_device = true;
    blocks.twin(pool, records, false);
    EXPECT_TRUE(same_bytes(blocks.pool().download(), pool));
    blocks.pool().upload(std::vector<std::byte>(pool.size(), kPoison));
    run_as_graph([&] { gather_and_dequantise(near, stream()); });
    EXPECT_TRUE(same_bytes(blocks.pool().download(), pool));
    EXPECT_TRUE(same_bytes(blocks.records().download(), records));
  }
};

TEST_P(GpuPools, PacksAndGathersAsTheTwinDoesForEveryLayout) {
  unsigned seed = 40;
  for (PoolCase of : cases()) {
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
      SCOPED_TRACE(std::to_string(seed) + ", page type " + std::to_string(static_cast<int>(type)));
      of.type = type;
      expect_like_the_twin(of, seed);
    }
    ++seed;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryFormat, GpuPools,
                         testing::Values(StorageFormat::raw, StorageFormat::bf16,
                                         StorageFormat::f32, StorageFormat::fp8_e4m3,
                                         StorageFormat::fp8_e5m2, StorageFormat::int8,
                                         StorageFormat::int4),
                         [](const auto& param) { return std::string(name(param.param)); });

}  // namespace
}  // namespace kvtier::kernels::cuda
