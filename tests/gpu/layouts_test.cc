// Page pools of every layout and format on a GPU with a real daemon: the records are those that the
// CPU twin makes of the same pages, bit for bit, and what is loaded is what the twin loads, from
// every tier, with nothing beside it touched.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>

#include "bench/support/pool_layouts.h"
#include "client/transfer/page_table.h"
#include "tests/gpu/client_fixture.h"
#include "tests/kernels/isa.h"

namespace kvtier::gpu_test {
namespace {

using bench::kLayouts;
using bench::Layout;
using bench::page_tokens;
using bench::PageShape;
using bench::PoolPlan;
using bench::raw_bytes_of;

constexpr std::uint32_t kBlocks = 40;  // more than the copy engine's runs begin at
constexpr std::uint32_t kPoolBlocks = 64;
constexpr std::byte kPoison{0xA5};

struct LayoutCase {
  StorageFormat format;
  DType type;
};

// A namespace with what its pages hold; the same for all layouts.
struct Model {
  Namespace ns;
  std::vector<PageShape> shapes;  // of each layer
};

Namespace named(const std::string& what, std::uint32_t layers, StorageFormat format) {
  Namespace ns = test_namespace();
  ns.model = "layouts-" + what + "@1";
  ns.layers = layers;
  ns.format = format;
  return ns;
}

// `what` layers of heads x dims.
Model uniform_model(const std::string& what, const PageShape& shape, const LayoutCase& of) {
  constexpr std::uint32_t kLayers = 5;
  Model model{named(what, kLayers, of.format), std::vector<PageShape>(kLayers, shape)};
  model.ns.kv_heads = shape.heads;
  model.ns.head_dim_k = shape.dim_k;
  model.ns.head_dim_v = shape.dim_v;
  if (of.format == StorageFormat::raw) {
    model.ns.raw_bytes =
        raw_bytes_of(model.ns.block_tokens, shape.heads, shape.dim_k, shape.dim_v, of.type);
    model.ns.page_layout = what;
  }
  return model;
}

// Layers of several head counts, one of them raw whatever the others are, one without V.
Model mixed_model(const LayoutCase& of) {
  Model model{named("mixed", 6, of.format), {}};
  model.shapes = {{4, 64, 64}, {4, 64, 64}, {2, 128, 128}, {3, 40, 24}, {1, 96, 0}, {4, 64, 64}};
  for (std::size_t i = 0; i < model.shapes.size(); ++i) {
    const PageShape& s = model.shapes[i];
    LayerShape layer{s.heads, s.dim_k, s.dim_v, of.format, 0};
    if (i == 2) layer.format = StorageFormat::raw;
    if (layer.format == StorageFormat::raw)
      layer.raw_bytes = raw_bytes_of(model.ns.block_tokens, s.heads, s.dim_k, s.dim_v, of.type);
    model.ns.layer_shapes.push_back(layer);
  }
  const LayerShape& first = model.ns.layer_shapes.front();
  model.ns.kv_heads = first.kv_heads;
  model.ns.head_dim_k = first.head_dim_k;
  model.ns.head_dim_v = first.head_dim_v;
  model.ns.raw_bytes = first.raw_bytes;
  model.ns.page_layout = "mixed";
  return model;
}

// The same pool on the GPU and on the CPU.
class TwinPools {
 public:
  TwinPools(const Model& model, Layout layout, DType type, std::size_t gap)
      : plan_(layout, model.shapes, model.ns.block_tokens, type,
              kPoolBlocks * (model.ns.block_tokens / page_tokens(layout, model.ns.block_tokens)),
              gap),
        entry_(model.ns, 1),
        gpu_memory_(plan_.bytes()),
        host_memory_(plan_.bytes(), kPoison),
        gpu_pool_(PagePool::of(model.ns, plan_.at(gpu_memory_.get())).value()),
        host_pool_(PagePool::of(model.ns, plan_.at(host_memory_.data())).value()) {
    gpu_memory_.upload(host_memory_);
  }

  void randomise(unsigned seed, DType type) {
    const auto values = kernels::random_floats(host_memory_.size() / bytes_of(type), seed, 3);
    const auto bytes = kernels::packed(values, type);
    std::ranges::copy(bytes, host_memory_.begin());
    gpu_memory_.upload(host_memory_);
  }
  // Blocks in pages that are anywhere.
  void choose_pages(unsigned seed) {
    std::vector<std::uint32_t> all(gpu_pool_.pages());
    std::iota(all.begin(), all.end(), 0);
    std::ranges::shuffle(all, std::mt19937(seed));
    numbers_.assign(all.begin(), all.begin() + kBlocks * gpu_pool_.pages_of_block());
  }

  Pages pages() const { return of(gpu_pool_); }
  transfer::PageTable twin() const {
    return transfer::PageTable::of(of(host_pool_), entry_, {}, false).value();
  }
  const session::NamespaceEntry& entry() const { return entry_; }
  std::vector<std::byte> on_gpu() const { return gpu_memory_.download(); }
  const std::vector<std::byte>& on_cpu() const { return host_memory_; }

 private:
  Pages of(const PagePool& pool) const {
    Pages pages;
    pages.pool = &pool;
    pages.numbers = numbers_;
    return pages;
  }

  const PoolPlan plan_;
  const session::NamespaceEntry entry_;
  DeviceArray<std::byte> gpu_memory_;
  std::vector<std::byte> host_memory_;
  const PagePool gpu_pool_, host_pool_;
  std::vector<std::uint32_t> numbers_;
};

// The twin's records of the pool's blocks.
std::vector<std::byte> records_of(const TwinPools& pools) {
  const RecordLayout& layout = pools.entry().layout;
  std::vector<std::byte> records(kBlocks * layout.record_bytes);
  const auto table = pools.twin();
  for (std::uint32_t i = 0; i < kBlocks; ++i)
    table.store(i, records.data() + i * layout.record_bytes);
  return records;
}

// What the twin loads into a pool that was poison, of the first `blocks`.
void load_by_twin(const TwinPools& pools, std::vector<std::byte>& records,
                  std::uint32_t blocks = kBlocks) {
  const RecordLayout& layout = pools.entry().layout;
  std::vector<std::byte*> pointers;
  for (std::uint32_t i = 0; i < blocks; ++i)
    pointers.push_back(records.data() + i * layout.record_bytes);
  const auto table = pools.twin();
  for (std::uint32_t layer = 0; layer < layout.layers; ++layer) table.load_layer(layer, pointers);
}

// Payloads and scales alike; what lies between is nobody's.
testing::AssertionResult same_stored(const std::vector<std::byte>& got,
                                     const std::vector<std::byte>& expected,
                                     const session::NamespaceEntry& entry) {
  const auto same = [&](std::size_t at, std::size_t bytes) {
    return std::memcmp(got.data() + at, expected.data() + at, bytes) == 0;
  };
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    const std::size_t record = i * entry.layout.record_bytes;
    for (std::size_t l = 0; l < entry.layers.size(); ++l) {
      const LayerLayout& layer = entry.layers[l];
      if (!same(record + layer.offset, layer.bytes))
        return testing::AssertionFailure() << "payload of block " << i << ", layer " << l;
      const std::size_t sides = layer.head_dim_v == 0 ? 1 : 2;
      if (has_scales(layer.format) &&
          !same(record + layer.scales_offset, sides * layer.kv_heads * sizeof(float)))
        return testing::AssertionFailure() << "scales of block " << i << ", layer " << l;
    }
  }
  return testing::AssertionSuccess();
}

// Where this process has the record of `key` in the daemon's host memory.
std::byte* record_in_host(const Key& key) {
  constexpr std::size_t kKeyOffset = 48;  // docs/format.md
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) != 3) continue;
    if (std::string(rights) != "rw-s" || line.find("memfd:") == std::string::npos) continue;
    for (; begin < end; begin += kRecordAlignment) {
      auto* record = reinterpret_cast<std::byte*>(begin);
      if (std::memcmp(record + kKeyOffset, key.bytes.data(), key.bytes.size()) == 0) return record;
    }
  }
  return nullptr;
}

class LayoutsTest : public GpuClientTest, public testing::WithParamInterface<LayoutCase> {
 protected:
  void put_through(const Model& model, Layout kind, std::size_t gap) {
    SCOPED_TRACE(std::string(name(kind)) + ", " + model.ns.model);
    Model own = model;
    own.ns.model += name(kind) + std::to_string(gap);
    const Engine by{engine.client, engine.client->open(own.ns).value()};
    ASSERT_TRUE(engine.client->flush(soon()));
    TwinPools out(own, kind, GetParam().type, gap);
    out.randomise(++seed_, GetParam().type);
    out.choose_pages(seed_);
    const auto prompt = prompt_of(seed_, kBlocks);
    auto write = by.cache->write_back(prompt, 0, out.pages(), on_stream());
    write.wait();
    ASSERT_EQ(write.accepted(), kBlocks);
    ASSERT_TRUE(engine.client->flush(soon()));

    auto records = records_of(out);
    expect_records(by, prompt, records, out.entry());
    // Into another layout, where records do not depend on it.
    const bool raw = GetParam().format == StorageFormat::raw || !own.ns.layer_shapes.empty();
    const Layout other = raw || kind != Layout::apart_nhd ? kind : Layout::all_layers;
    for (const Tier from : {Tier::host, Tier::disk, Tier::device}) {
      SCOPED_TRACE(name(from));
      if (from == Tier::host) daemon->drop(kDevice);
      if (from == Tier::disk) daemon->drop({static_cast<std::uint8_t>(kDevice.bits | kHost.bits)});
      TwinPools in(own, from == Tier::device ? kind : other, GetParam().type, gap);
      in.choose_pages(++seed_);
      load_by_twin(in, records);
      load_by_gpu(by, prompt, in, from);
      EXPECT_TRUE(in.on_gpu() == in.on_cpu());
    }
    daemon->drop({static_cast<std::uint8_t>(kDevice.bits | kHost.bits)});
  }

  void expect_records(const Engine& by, std::span<const Token> prompt,
                      const std::vector<std::byte>& expected,
                      const session::NamespaceEntry& entry) {
    daemon->drop(kDevice);
    Lease lease = leased(by, prompt, kBlocks, Tier::host);
    RecordPages pages(entry.layout, kBlocks);
    auto load = lease.load_into(pages.pages(), on_stream());
    ASSERT_TRUE(load) << load.error().message;
    ASSERT_EQ(load->finish(), kBlocks);
    EXPECT_TRUE(same_stored(pages.download(), expected, entry));
    lease.release();
    ASSERT_TRUE(engine.client->flush(soon()));
  }

  void load_by_gpu(const Engine& by, std::span<const Token> prompt, const TwinPools& in,
                   Tier from) {
    if (from == Tier::device) promote(by, prompt, in.entry().layout);
    Lease lease = by.cache->lease(prompt, kBlocks, soon()).value();
    ASSERT_EQ(lease.blocks(), kBlocks);
    for (std::uint32_t i = 0; i < kBlocks; ++i) EXPECT_EQ(lease.source(i), from) << i;
    ASSERT_EQ(lease.wait_ready(soon()), kBlocks);
    auto load = lease.load_into(in.pages(), on_stream());
    ASSERT_TRUE(load) << load.error().message;
    ASSERT_EQ(load->finish(), kBlocks);
    lease.release();
    ASSERT_TRUE(engine.client->flush(soon()));
  }

  // Until all blocks are in HBM.
  void promote(const Engine& by, std::span<const Token> prompt, const RecordLayout& of) {
    for (int turns = 0; turns < 50; ++turns) {
      if (by.cache->match(prompt).per_tier[index_of(Tier::device)] == kBlocks) return;
      Lease lease = by.cache->lease(prompt, kBlocks, soon()).value();
      ASSERT_EQ(lease.wait_ready(soon()), kBlocks);
      RecordPages pages(of, kBlocks);
      auto load = lease.load_into(pages.pages(), on_stream());
      ASSERT_TRUE(load);
      load->finish();
      lease.release();
      ASSERT_TRUE(engine.client->flush(soon()));
    }
    FAIL() << "the blocks do not come to be in HBM";
  }

  unsigned seed_ = 100;
};

TEST_P(LayoutsTest, are_stored_and_restored_as_the_cpu_does) {
  const Model model = uniform_model("heads", {4, 64, 64}, GetParam());
  for (const Layout kind : kLayouts) put_through(model, kind, 0);
}

TEST_P(LayoutsTest, latent_pages_have_no_v) {
  const Model model = uniform_model("latent", {1, 576, 0}, GetParam());
  for (const Layout kind : {Layout::apart_nhd, Layout::all_layers, Layout::single_token})
    put_through(model, kind, 0);
}

TEST_P(LayoutsTest, layers_may_differ) {
  const Model model = mixed_model(GetParam());
  for (const Layout kind : {Layout::apart_nhd, Layout::all_layers}) put_through(model, kind, 0);
}

// Layers begin at no multiple of 16 bytes, and heads have odd sizes: kernels copy numbers one by
// one.
TEST_P(LayoutsTest, pages_may_begin_anywhere) {
  const Model model = uniform_model("odd", {3, 20, 12}, GetParam());
  put_through(model, Layout::all_layers, bytes_of(GetParam().type));
  put_through(model, Layout::single_token, 0);
}

TEST_P(LayoutsTest, nothing_of_a_block_that_does_not_hold_nor_of_those_behind_it_is_loaded) {
  constexpr std::uint32_t kGood = 33;
  const Model model = uniform_model("fault", {4, 64, 64}, GetParam());
  const Engine by{engine.client, engine.client->open(model.ns).value()};
  ASSERT_TRUE(engine.client->flush(soon()));
  TwinPools out(model, Layout::apart_nhd, GetParam().type, 0);
  out.randomise(7, GetParam().type);
  out.choose_pages(7);
  const auto prompt = prompt_of(7, kBlocks);
  auto write = by.cache->write_back(prompt, 0, out.pages(), on_stream());
  write.wait();
  ASSERT_EQ(write.accepted(), kBlocks);
  ASSERT_TRUE(engine.client->flush(soon()));
  daemon->drop(kDevice);
  Lease lease = leased(by, prompt, kBlocks, Tier::host);
  std::byte* record = record_in_host(chain_keys(id_of(model.ns), 16, prompt)[kGood]);
  ASSERT_NE(record, nullptr);
  record[128] ^= std::byte{1};  // the first of its tokens

  auto records = records_of(out);
  TwinPools in(model, Layout::apart_nhd, GetParam().type, 0);
  in.choose_pages(8);
  load_by_twin(in, records, kGood);
  auto load = lease.load_into(in.pages(), on_stream());
  ASSERT_TRUE(load) << load.error().message;
  EXPECT_EQ(load->finish(), kGood);
  ASSERT_EQ(load->faults().size(), 1U);
  EXPECT_EQ(load->faults()[0].block, kGood);
  EXPECT_TRUE(in.on_gpu() == in.on_cpu());
}

TEST_P(LayoutsTest, pools_in_other_memory_are_refused_by_name) {
  const Model model = uniform_model("refused", {4, 64, 64}, GetParam());
  const Engine by{engine.client, engine.client->open(model.ns).value()};
  ASSERT_TRUE(engine.client->flush(soon()));
  const PoolPlan plan(Layout::apart_nhd, model.shapes, 16, GetParam().type, kPoolBlocks);
  const DeviceArray<std::byte> memory(plan.bytes());
  std::vector<std::byte> host(plan.bytes());
  PoolShape shape = plan.at(memory.get());
  shape.layers[3].v = plan.at(host.data()).layers[3].v;
  const PagePool pool = PagePool::of(model.ns, shape).value();
  std::vector<std::uint32_t> numbers(1);
  Pages pages;
  pages.pool = &pool;
  pages.numbers = numbers;
  auto write = by.cache->write_back(prompt_of(1, 1), 0, pages, on_stream());
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);

  const PagePool good = PagePool::of(model.ns, plan.at(memory.get())).value();
  pages.pool = &good;
  by.cache->write_back(prompt_of(1, 1), 0, pages, on_stream()).wait();
  ASSERT_TRUE(engine.client->flush(soon()));
  Lease lease = by.cache->lease(prompt_of(1, 1), 1, soon()).value();
  ASSERT_EQ(lease.wait_ready(soon()), 1U);
  pages.pool = &pool;
  const auto load = lease.load_into(pages, on_stream());
  ASSERT_FALSE(load);
  EXPECT_EQ(load.error().code, Errc::invalid);
  EXPECT_NE(load.error().message.find("V of layer 3"), std::string::npos) << load.error().message;
}

INSTANTIATE_TEST_SUITE_P(EveryFormat, LayoutsTest,
                         testing::Values(LayoutCase{StorageFormat::raw, DType::bf16},
                                         LayoutCase{StorageFormat::bf16, DType::bf16},
                                         LayoutCase{StorageFormat::fp8_e4m3, DType::bf16},
                                         LayoutCase{StorageFormat::fp8_e5m2, DType::f16},
                                         LayoutCase{StorageFormat::f32, DType::f32},
                                         LayoutCase{StorageFormat::int8, DType::f16},
                                         LayoutCase{StorageFormat::int4, DType::bf16}),
                         [](const auto& param) {
                           return std::string(kvtier::name(param.param.format));
                         });

}  // namespace
}  // namespace kvtier::gpu_test
