// The client on a GPU with a real daemon: what comes back is what was written, from every tier, to
// every kind of page, in the order that the engine's stream gives, and nothing else when the daemon
// dies.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <csignal>
#include <random>
#include <thread>

#include "kernels/table.h"
#include "tests/e2e/daemon_process.h"
#include "tests/gpu/records_on_gpu.h"

namespace kvtier::gpu_test {
namespace {

constexpr TierSet kDevice = TierSet{}.with(Tier::device);
constexpr TierSet kHost = TierSet{}.with(Tier::host);

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

class GpuClientTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    daemon = std::make_unique<e2e::DaemonProcess>(options());
    daemon->start();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    engine = connect(0);
  }
  void TearDown() override {
    if (stream == nullptr) return;
    engine = {};
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  static e2e::DaemonOptions options() {
    e2e::DaemonOptions options;
    options.device_backend = "cuda";
    options.device_capacity = "64MiB";
    options.host_capacity = "512MiB";
    options.extent_size = "16MiB";
    options.disk_capacity = "256MiB";
    options.segment_size = "16MiB";
    return options;
  }

  struct Engine {
    std::shared_ptr<Client> client;
    std::shared_ptr<Cache> cache;
  };
  Engine connect(std::optional<std::uint32_t> cuda_device) {
    Engine made;
    made.client = client_of(daemon->socket(), cuda_device);
    made.cache = made.client->open(ns).value();
    EXPECT_TRUE(made.client->wait_connected(soon()));
    EXPECT_TRUE(made.client->flush(soon()));
    return made;
  }
  Stream on_stream() const { return {stream}; }

  // The blocks of prompt `number` in the cache, written from record pages.
  std::vector<Token> written(std::uint32_t number, std::size_t blocks) {
    const auto prompt = prompt_of(number, blocks);
    RecordPages pages(layout, blocks);
    pages.compute(ns, prompt);
    auto write = engine.cache->write_back(prompt, 0, pages.pages(), on_stream());
    write.wait();
    EXPECT_EQ(write.accepted(), blocks);
    EXPECT_TRUE(engine.client->flush(soon()));
    return prompt;
  }
  Lease leased(const Engine& by, std::span<const Token> prompt, std::size_t blocks, Tier from) {
    auto lease = by.cache->lease(prompt, static_cast<std::uint32_t>(blocks), soon());
    EXPECT_TRUE(lease.has_value()) << (lease ? "" : lease.error().message);
    EXPECT_EQ(lease->blocks(), blocks);
    for (std::uint32_t i = 0; i < lease->blocks(); ++i) EXPECT_EQ(lease->source(i), from) << i;
    EXPECT_EQ(lease->wait_ready(soon()), blocks);
    return std::move(*lease);
  }
  void expect_loaded(const Engine& by, std::span<const Token> prompt, std::size_t blocks,
                     Tier from) {
    SCOPED_TRACE(name(from));
    Lease lease = leased(by, prompt, blocks, from);
    RecordPages pages(layout, blocks);
    auto load = lease.load_into(pages.pages(), on_stream());
    ASSERT_TRUE(load) << load.error().message;
    EXPECT_EQ(load->finish(), blocks);
    EXPECT_EQ(right_records(pages.download(), ns, prompt, blocks), blocks);
    lease.release();
    // Promotions and the release have reached the daemon.
    EXPECT_TRUE(by.client->flush(soon()));
  }

  void expect_ordered(const Engine& by, std::span<const Token> prompt, std::size_t blocks);

  const Namespace ns = test_namespace();
  const RecordLayout layout = RecordLayout::of(ns);
  std::unique_ptr<e2e::DaemonProcess> daemon;
  cudaStream_t stream = nullptr;
  Engine engine;
};

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
        kernels::BlockLayerArgs args;
        args.layout = &layout;
        args.layer = layer;
        args.blocks = 1;
        args.page_type = DType::bf16;
        args.k_pages = &k;
        args.v_pages = &v;
        args.records = &record;
        const auto& cpu = kernels::cpu_kernels();
        store ? cpu.quantise_and_scatter(args, nullptr) : cpu.gather_and_dequantise(args, nullptr);
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

// Holds the engine's stream until it is let go.
struct Barrier {
  explicit Barrier(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream, [](void* open) { static_cast<std::atomic<bool>*>(open)->wait(false); },
                  &opened),
              cudaSuccess);
  }
  void let_go() {
    opened = true;
    opened.notify_all();
  }
  std::atomic<bool> opened{false};
};

// A load is launched while the engine's stream is held, and so are reads of its layers.
void GpuClientTest::expect_ordered(const Engine& by, std::span<const Token> prompt,
                                   std::size_t blocks) {
  Lease lease = leased(by, prompt, blocks, Tier::host);
  RecordPages pages(layout, blocks);
  RecordPages copy(layout, blocks);
  // What the test launches itself is loaded: loading may wait for the device.
  ASSERT_EQ(cudaMemsetAsync(pages.data(), 0x44, pages.bytes(), stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpy2DAsync(copy.data(), layout.record_bytes, pages.data(), layout.record_bytes,
                              16, blocks, cudaMemcpyDeviceToDevice, stream),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  Barrier barrier(stream);
  // The engine still writes to the pages.
  ASSERT_EQ(cudaMemsetAsync(pages.data(), 0x55, pages.bytes(), stream), cudaSuccess);
  auto load = lease.load_into(pages.pages(), on_stream());
  ASSERT_TRUE(load);
  for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
    load->wait_layer(layer, on_stream());
    const std::size_t begin = layer == 0 ? 0 : layout.header_bytes + layer * layout.layer_bytes;
    const std::size_t end = layer + 1 == layout.layers
                                ? layout.record_bytes
                                : layout.header_bytes + (layer + 1) * layout.layer_bytes;
    ASSERT_EQ(cudaMemcpy2DAsync(copy.data() + begin, layout.record_bytes, pages.data() + begin,
                                layout.record_bytes, end - begin, blocks, cudaMemcpyDeviceToDevice,
                                stream),
              cudaSuccess);
  }
  barrier.let_go();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(right_records(copy.download(), ns, prompt, blocks), blocks);
  EXPECT_EQ(load->finish(), blocks);
  lease.release();
  // Promotions have reached the daemon.
  EXPECT_TRUE(by.client->flush(soon()));
}

TEST_F(GpuClientTest, a_load_waits_for_the_engines_stream_and_the_stream_for_each_layer) {
  constexpr std::size_t kBlocks = 12;
  const auto prompt = written(6, kBlocks);
  daemon->drop(kDevice);
  expect_ordered(engine, prompt, kBlocks);
}

// Pinning begins when a client hears of an extent: the first loads find it not pinned yet.
TEST_F(GpuClientTest,
       a_load_from_memory_that_is_not_pinned_yet_waits_for_nothing_on_the_engines_thread) {
  constexpr std::size_t kBlocks = 12;
  const auto prompt = written(8, kBlocks);
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    daemon->drop(kDevice);
    const Engine fresh = connect(0);
    expect_ordered(fresh, prompt, kBlocks);
  }
}

TEST_F(GpuClientTest, a_write_back_waits_for_the_engines_stream) {
  constexpr std::size_t kBlocks = 9;
  const auto prompt = prompt_of(7, kBlocks);
  RecordPages right(layout, kBlocks);
  right.compute(ns, prompt);
  RecordPages pages(layout, kBlocks);
  Barrier barrier(stream);
  ASSERT_EQ(
      cudaMemcpyAsync(pages.data(), right.data(), pages.bytes(), cudaMemcpyDeviceToDevice, stream),
      cudaSuccess);
  auto write = engine.cache->write_back(prompt, 0, pages.pages(), on_stream());
  barrier.let_go();
  write.wait();
  // The pages are the engine's again.
  ASSERT_EQ(cudaMemset(pages.data(), 0xAA, pages.bytes()), cudaSuccess);
  ASSERT_EQ(write.accepted(), kBlocks);
  ASSERT_TRUE(engine.client->flush(soon()));
  expect_loaded(engine, prompt, kBlocks, Tier::device);
  daemon->drop(kDevice);
  expect_loaded(engine, prompt, kBlocks, Tier::host);
}

TEST_F(GpuClientTest, a_load_during_which_the_daemon_dies_counts_for_nothing) {
  constexpr std::size_t kBlocks = 8;
  for (const Tier from : {Tier::device, Tier::host}) {
    SCOPED_TRACE(name(from));
    engine = connect(0);
    // Another one each time: what was written before is on disk.
    const auto prompt = written(from == Tier::device ? 8 : 18, kBlocks);
    if (from == Tier::host) daemon->drop(kDevice);
    Lease lease = leased(engine, prompt, kBlocks, from);
    RecordPages pages(layout, kBlocks);
    Barrier barrier(stream);
    auto load = lease.load_into(pages.pages(), on_stream());
    ASSERT_TRUE(load);
    daemon->send(SIGKILL);
    const Deadline deadline = soon();
    while (engine.client->connected() && Clock::now() < deadline) std::this_thread::yield();
    barrier.let_go();
    EXPECT_EQ(load->finish(), 0U);
    EXPECT_FALSE(lease.held());
    EXPECT_EQ(engine.client->stats().leases_lost, 1U);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    daemon->start();
  }
}

TEST_F(GpuClientTest, a_lease_whose_time_is_over_during_its_load_counts_for_nothing) {
  constexpr std::size_t kBlocks = 4;
  const auto prompt = written(9, kBlocks);
  Lease lease = leased(engine, prompt, kBlocks, Tier::device);
  RecordPages pages(layout, kBlocks);
  Barrier barrier(stream);
  auto load = lease.load_into(pages.pages(), on_stream());
  ASSERT_TRUE(load);
  daemon->kill_and_start();
  const Deadline deadline = soon();
  while (engine.client->stats().connects < 2 && Clock::now() < deadline) std::this_thread::yield();
  barrier.let_go();
  EXPECT_EQ(load->finish(), 0U);
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
