// An engine's client on a GPU with a real daemon.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "kernels/cuda/stream.h"
#include "tests/e2e/daemon_process.h"
#include "tests/gpu/records_on_gpu.h"

namespace kvtier::gpu_test {

using kernels::cuda::Stream;

inline constexpr TierSet kDevice = TierSet{}.with(Tier::device);
inline constexpr TierSet kHost = TierSet{}.with(Tier::host);

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

class GpuClientTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    daemon = std::make_unique<e2e::DaemonProcess>(options());
    daemon->start();
    stream = Stream(Stream::Priority::normal);
    engine = connect(0);
  }
  void TearDown() override {
    if (!on_stream()) return;
    engine = {};
    stream = {};
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
  StreamView on_stream() const { return stream.view(); }

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

  const Namespace ns = test_namespace();
  const RecordLayout layout = RecordLayout::of(ns);
  std::unique_ptr<e2e::DaemonProcess> daemon;
  Stream stream;
  Engine engine;
};

}  // namespace kvtier::gpu_test
