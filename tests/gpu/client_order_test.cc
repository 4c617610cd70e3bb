// The client on a GPU with a real daemon: loads and write-backs in the order that the engine's
// stream gives, and nothing else when the daemon dies.
#include <atomic>
#include <csignal>
#include <thread>

#include "tests/gpu/client_fixture.h"

namespace kvtier::gpu_test {
namespace {

// Holds the engine's stream until it is let go.
struct Barrier {
  explicit Barrier(StreamView stream) {
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream.get(),
                  [](void* open) { static_cast<std::atomic<bool>*>(open)->wait(false); }, &opened),
              cudaSuccess);
  }
  void let_go() {
    opened = true;
    opened.notify_all();
  }
  std::atomic<bool> opened{false};
};

class GpuClientOrder : public GpuClientTest {
 protected:
  // A load is launched while the engine's stream is held, and so are reads of its layers.
  void expect_ordered(const Engine& by, std::span<const Token> prompt, std::size_t blocks) {
    Lease lease = leased(by, prompt, blocks, Tier::host);
    RecordPages pages(layout, blocks);
    RecordPages copy(layout, blocks);
    // What the test launches itself is loaded: loading may wait for the device.
    ASSERT_EQ(cudaMemsetAsync(pages.data(), 0x44, pages.bytes(), on_stream().get()), cudaSuccess);
    ASSERT_EQ(cudaMemcpy2DAsync(copy.data(), layout.record_bytes, pages.data(), layout.record_bytes,
                                16, blocks, cudaMemcpyDeviceToDevice, on_stream().get()),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(on_stream().get()), cudaSuccess);
    Barrier barrier(on_stream());
    // The engine still writes to the pages.
    ASSERT_EQ(cudaMemsetAsync(pages.data(), 0x55, pages.bytes(), on_stream().get()), cudaSuccess);
    auto load = lease.load_into(pages.pages(), on_stream());
    ASSERT_TRUE(load);
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
      load->wait_layer(layer, on_stream());
      const std::size_t begin = layer == 0 ? 0 : layout.header_bytes + layer * layout.layer_bytes;
      const std::size_t end = layer + 1 == layout.layers
                                  ? layout.record_bytes
                                  : layout.header_bytes + (layer + 1) * layout.layer_bytes;
      ASSERT_EQ(cudaMemcpy2DAsync(copy.data() + begin, layout.record_bytes, pages.data() + begin,
                                  layout.record_bytes, end - begin, blocks,
                                  cudaMemcpyDeviceToDevice, on_stream().get()),
                cudaSuccess);
    }
    barrier.let_go();
    ASSERT_EQ(cudaStreamSynchronize(on_stream().get()), cudaSuccess);
    EXPECT_EQ(right_records(copy.download(), ns, prompt, blocks), blocks);
    EXPECT_EQ(load->finish(), blocks);
    lease.release();
    // Promotions have reached the daemon.
    EXPECT_TRUE(by.client->flush(soon()));
  }
};

TEST_F(GpuClientOrder, a_load_waits_for_the_engines_stream_and_the_stream_for_each_layer) {
  constexpr std::size_t kBlocks = 12;
  const auto prompt = written(6, kBlocks);
  daemon->drop(kDevice);
  expect_ordered(engine, prompt, kBlocks);
}

// Pinning begins when a client hears of an extent: the first loads find it not pinned yet.
TEST_F(GpuClientOrder,
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

TEST_F(GpuClientOrder, a_write_back_waits_for_the_engines_stream) {
  constexpr std::size_t kBlocks = 9;
  const auto prompt = prompt_of(7, kBlocks);
  RecordPages right(layout, kBlocks);
  right.compute(ns, prompt);
  RecordPages pages(layout, kBlocks);
  Barrier barrier(on_stream());
  ASSERT_EQ(cudaMemcpyAsync(pages.data(), right.data(), pages.bytes(), cudaMemcpyDeviceToDevice,
                            on_stream().get()),
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

TEST_F(GpuClientOrder, a_load_during_which_the_daemon_dies_counts_for_nothing) {
  constexpr std::size_t kBlocks = 8;
  for (const Tier from : {Tier::device, Tier::host}) {
    SCOPED_TRACE(name(from));
    engine = connect(0);
    // Another one each time: what was written before is on disk.
    const auto prompt = written(from == Tier::device ? 8 : 18, kBlocks);
    if (from == Tier::host) daemon->drop(kDevice);
    Lease lease = leased(engine, prompt, kBlocks, from);
    RecordPages pages(layout, kBlocks);
    Barrier barrier(on_stream());
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

TEST_F(GpuClientOrder, a_lease_whose_time_is_over_during_its_load_counts_for_nothing) {
  constexpr std::size_t kBlocks = 4;
  const auto prompt = written(9, kBlocks);
  Lease lease = leased(engine, prompt, kBlocks, Tier::device);
  RecordPages pages(layout, kBlocks);
  Barrier barrier(on_stream());
  auto load = lease.load_into(pages.pages(), on_stream());
  ASSERT_TRUE(load);
  daemon->kill_and_start();
  const Deadline deadline = soon();
  while (engine.client->stats().connects < 2 && Clock::now() < deadline) std::this_thread::yield();
  barrier.let_go();
  EXPECT_EQ(load->finish(), 0U);
}

}  // namespace
}  // namespace kvtier::gpu_test
