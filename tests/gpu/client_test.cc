// The client on a GPU with a real daemon: what comes back is what was written, from every tier, to
// every kind of page.
#include <algorithm>
#include <bit>
#include <random>

#include "kernels/table.h"
#include "tests/gpu/client_fixture.h"

namespace kvtier::gpu_test {
namespace {

TEST_F(GpuClientTest, records_come_back_exactly_from_every_tier) {
  constexpr std::size_t kBlocks = 24;
  const auto prompt = written(1, kBlocks);
  const Engine other = connect(0);
  expect_loaded(other, prompt, kBlocks, Tier::device);
  daemon->drop(kDevice);
  expect_loaded(other, prompt, kBlocks, Tier::host);
  daemon->drop({static_cast<std::uint8_t>(kDevice.bits | kHost.bits)});
  expect_loaded(other, prompt, kBlocks, Tier::disk);
}

TEST_F(GpuClientTest, a_client_on_the_cpu_sees_the_same_bytes_from_the_host) {
  constexpr std::size_t kBlocks = 5;
  const auto prompt = written(2, kBlocks);
  const Engine cpu = connect(std::nullopt);
  const Match match = cpu.cache->match(prompt);
  EXPECT_EQ(match.blocks, kBlocks);
  EXPECT_EQ(match.per_tier[index_of(Tier::host)], kBlocks);
  Lease lease = leased(cpu, prompt, kBlocks, Tier::host);
  std::vector<std::byte> bytes(kBlocks * layout.record_bytes);
  std::vector<std::byte*> pointers;
  for (std::size_t i = 0; i < kBlocks; ++i)
    pointers.push_back(bytes.data() + i * layout.record_bytes);
  Pages pages;
  pages.records = pointers;
  auto load = lease.load_into(pages);
  ASSERT_TRUE(load);
  EXPECT_EQ(load->finish(), kBlocks);
  EXPECT_EQ(right_records(bytes, ns, prompt, kBlocks), kBlocks);
}

TEST_F(GpuClientTest, blocks_in_hbm_are_attended_to_in_place) {
  constexpr std::size_t kBlocks = 6;
  const auto prompt = written(3, kBlocks);
  Lease lease = leased(engine, prompt, kBlocks, Tier::device);
  RecordPages pages(layout, kBlocks);
  const auto untouched = pages.download();
  auto load = lease.load_into(pages.pages(true), on_stream());
  ASSERT_TRUE(load);
  load->wait_layer(layout.layers - 1, on_stream());
  EXPECT_EQ(load->finish(), kBlocks);
  ASSERT_EQ(load->records().size(), kBlocks);
  EXPECT_EQ(pages.download(), untouched);
  std::vector<std::byte> bytes(kBlocks * layout.record_bytes);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    EXPECT_NE(load->records()[i], pages.at(i));
    ASSERT_EQ(cudaMemcpy(bytes.data() + i * layout.record_bytes, load->records()[i],
                         layout.record_bytes, cudaMemcpyDeviceToHost),
              cudaSuccess);
  }
  EXPECT_EQ(right_records(bytes, ns, prompt, kBlocks), kBlocks);
}

TEST_F(GpuClientTest, blocks_from_the_host_go_to_their_pages_and_then_to_hbm) {
  constexpr std::size_t kBlocks = 10;
  const auto prompt = written(4, kBlocks);
  daemon->drop(kDevice);
  {
    Lease lease = leased(engine, prompt, kBlocks, Tier::host);
    RecordPages pages(layout, kBlocks);
    auto load = lease.load_into(pages.pages(true), on_stream());
    ASSERT_TRUE(load);
    for (std::size_t i = 0; i < kBlocks; ++i) EXPECT_EQ(load->records()[i], pages.at(i));
    EXPECT_EQ(load->finish(), kBlocks);
  }
  ASSERT_TRUE(engine.client->flush(soon()));
  EXPECT_EQ(daemon->status().blocks[index_of(Tier::device)], kBlocks);
  expect_loaded(engine, prompt, kBlocks, Tier::device);
}

// K and V of `blocks` blocks, in bf16.
struct KvPages {
  KvPages(const RecordLayout& l, std::size_t blocks)
      : elements(std::size_t{l.kv_heads} * l.block_tokens * l.head_dim_k),
        memory(2 * l.layers * blocks * elements) {
    memory.fill_bytes(0xFF);
    const std::size_t pages = l.layers * blocks;
    for (std::size_t i = 0; i < pages; ++i) {
      k.push_back(memory.get() + i * elements);
      v.push_back(memory.get() + (pages + i) * elements);
    }
  }
  Pages pages() const {
    Pages p;
    p.k_pages = k;
    p.v_pages = v;
    p.type = DType::bf16;
    return p;
  }
  const std::size_t elements;  // of a page
  DeviceArray<std::uint16_t> memory;
  std::vector<void*> k, v;
};

// The same through the CPU's kernels.
struct CpuTwin {
  CpuTwin(const RecordLayout& l, std::size_t n)
      : layout(l), blocks(n), records(n * l.record_bytes) {}
  void convert(std::vector<std::uint16_t>& values, bool store) {
    const std::size_t elements =
        std::size_t{layout.kv_heads} * layout.block_tokens * layout.head_dim_k;
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
      for (std::size_t b = 0; b < blocks; ++b) {
        void* k = &values[(layer * blocks + b) * elements];
        void* v = &values[(layout.layers * blocks + layer * blocks + b) * elements];
        std::byte* record = records.data() + b * layout.record_bytes;
        const LayerLayout place = layout.layer(layer);
        kernels::BlockLayerArgs args;
        args.layout = &place;
        args.blocks = 1;
        args.page_tokens = layout.block_tokens;
        args.page_type = DType::bf16;
        args.k = kernels::head_major(&k, layout.block_tokens, layout.head_dim_k, DType::bf16);
        args.v = kernels::head_major(&v, layout.block_tokens, layout.head_dim_v, DType::bf16);
        args.records = &record;
        const auto& cpu = kernels::cpu_kernels();
        store ? cpu.quantise_and_scatter(args) : cpu.gather_and_dequantise(args);
      }
    }
  }
  const RecordLayout layout;
  const std::size_t blocks;
  std::vector<std::byte> records;
};

TEST_F(GpuClientTest, k_and_v_pages_are_stored_and_restored_as_the_cpu_does) {
  constexpr std::size_t kBlocks = 7;
  const auto prompt = prompt_of(5, kBlocks);
  KvPages out(layout, kBlocks);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(out.memory.size());
  for (auto& value : values)
    value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  out.memory.upload(values);
  auto write = engine.cache->write_back(prompt, 0, out.pages(), on_stream());
  write.wait();
  ASSERT_EQ(write.accepted(), kBlocks);
  ASSERT_TRUE(engine.client->flush(soon()));

  CpuTwin twin(layout, kBlocks);
  twin.convert(values, true);
  twin.convert(values, false);
  for (const Tier from : {Tier::device, Tier::host}) {
    SCOPED_TRACE(name(from));
    ASSERT_TRUE(engine.client->flush(soon()));
    if (from == Tier::host) daemon->drop(kDevice);
    {
      Lease lease = leased(engine, prompt, kBlocks, from);
      KvPages in(layout, kBlocks);
      auto load = lease.load_into(in.pages(), on_stream());
      ASSERT_TRUE(load) << load.error().message;
      EXPECT_EQ(load->finish(), kBlocks);
      EXPECT_TRUE(in.memory.download() == values);
    }
    ASSERT_TRUE(engine.client->flush(soon()));
    // The records themselves.
    Lease lease = leased(engine, prompt, kBlocks, Tier::device);
    RecordPages records(layout, kBlocks);
    auto load = lease.load_into(records.pages(), on_stream());
    ASSERT_TRUE(load);
    ASSERT_EQ(load->finish(), kBlocks);
    const auto bytes = records.download();
    for (std::size_t b = 0; b < kBlocks; ++b) {
      const std::size_t at = b * layout.record_bytes;
      EXPECT_EQ(std::memcmp(bytes.data() + at + layout.header_bytes,
                            twin.records.data() + at + layout.header_bytes, layout.payload_bytes),
                0);
      EXPECT_EQ(std::memcmp(bytes.data() + at + layout.scales_offset,
                            twin.records.data() + at + layout.scales_offset,
                            std::size_t{layout.layers} * 2 * layout.kv_heads * sizeof(float)),
                0);
    }
  }
}

// Whether the records' payloads and scales are the twin's, record i of `bytes` being block
// order[i].
bool same_as_twin(std::span<const std::byte> bytes, const CpuTwin& twin,
                  std::span<const std::size_t> order) {
  const RecordLayout& l = twin.layout;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::byte* got = bytes.data() + i * l.record_bytes;
    const std::byte* expected = twin.records.data() + order[i] * l.record_bytes;
    if (std::memcmp(got + l.header_bytes, expected + l.header_bytes, l.payload_bytes) != 0 ||
        std::memcmp(got + l.scales_offset, expected + l.scales_offset,
                    std::size_t{l.layers} * 2 * l.kv_heads * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

TEST_F(GpuClientTest, long_runs_of_slots_are_loaded_to_pages_that_lie_anywhere) {
  // Several groups of layers, and more records than one buffer of the ring holds.
  Namespace wide = test_namespace();
  wide.model = "wide@1";
  wide.kv_heads = 16;
  const RecordLayout l = RecordLayout::of(wide);
  const auto cache = engine.client->open(wide).value();
  ASSERT_TRUE(engine.client->flush(soon()));
  constexpr std::size_t kBlocks = 150;
  constexpr std::size_t kAtATime = 30;
  const auto prompt = prompt_of(30, kBlocks);
  KvPages out(l, kBlocks);
  std::mt19937 random(30);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(out.memory.size());
  for (auto& value : values)
    value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  out.memory.upload(values);
  for (std::uint32_t first = 0; first < kBlocks; first += kAtATime) {
    std::vector<void*> k, v;
    for (std::uint32_t layer = 0; layer < l.layers; ++layer) {
      for (std::size_t b = first; b < first + kAtATime; ++b) {
        k.push_back(out.k[layer * kBlocks + b]);
        v.push_back(out.v[layer * kBlocks + b]);
      }
    }
    Pages part;
    part.k_pages = k;
    part.v_pages = v;
    part.type = DType::bf16;
    auto write = cache->write_back(prompt, first, part, on_stream());
    write.wait();
    ASSERT_EQ(write.accepted(), kAtATime);
    ASSERT_TRUE(engine.client->flush(soon()));
  }
  CpuTwin twin(l, kBlocks);
  twin.convert(values, true);
  twin.convert(values, false);

  const Engine reader{engine.client, cache};
  std::vector<std::size_t> order(kBlocks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const bool shuffled : {false, true}) {
    SCOPED_TRACE(shuffled ? "shuffled" : "side by side");
    if (shuffled) std::ranges::shuffle(order, random);
    daemon->drop(kDevice);
    RecordPages pages(l, kBlocks);
    std::vector<std::byte*> pointers(kBlocks);
    for (std::size_t i = 0; i < kBlocks; ++i) pointers[order[i]] = pages.at(i);
    Pages where;
    where.records = pointers;
    Lease lease = leased(reader, prompt, kBlocks, Tier::host);
    auto load = lease.load_into(where, on_stream());
    ASSERT_TRUE(load) << load.error().message;
    EXPECT_EQ(load->finish(), kBlocks);
    EXPECT_TRUE(same_as_twin(pages.download(), twin, order));
    lease.release();
    ASSERT_TRUE(engine.client->flush(soon()));
  }
  daemon->drop(kDevice);
  Lease lease = leased(reader, prompt, kBlocks, Tier::host);
  KvPages in(l, kBlocks);
  auto load = lease.load_into(in.pages(), on_stream());
  ASSERT_TRUE(load) << load.error().message;
  EXPECT_EQ(load->finish(), kBlocks);
  EXPECT_TRUE(in.memory.download() == values);
}

TEST_F(GpuClientTest, memory_that_is_not_the_gpus_is_refused) {
  std::vector<std::byte> host(layout.record_bytes);
  std::byte* pointer = host.data();
  const auto prompt = written(10, 1);
  Lease lease = leased(engine, prompt, 1, Tier::device);
  Pages pages;
  pages.records = {&pointer, 1};
  const auto load = lease.load_into(pages, on_stream());
  ASSERT_FALSE(load);
  EXPECT_EQ(load.error().code, Errc::invalid);
  auto write = engine.cache->write_back(prompt_of(11, 1), 0, pages, on_stream());
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);
}

TEST_F(GpuClientTest, the_daemon_takes_no_more_of_the_gpu_than_its_cap) {
  for (std::uint32_t number = 20; number < 44; ++number) written(number, 24);  // 76 MiB
  const auto status = daemon->status();
  EXPECT_LE(status.taken_bytes[index_of(Tier::device)], 64U << 20);
  EXPECT_GT(status.blocks[index_of(Tier::device)], 300U);
  EXPECT_GT(status.evictions[index_of(Tier::device)], 0U);
  expect_loaded(engine, prompt_of(43, 24), 24, Tier::device);
}

}  // namespace
}  // namespace kvtier::gpu_test
