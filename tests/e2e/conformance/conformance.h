// What every layout, format and backend has to hold to: blocks go from an engine's pages to a real
// kvtierd, leave its memory, and come back from its disk.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kvtier/client.h"
#include "tests/e2e/conformance/engine_pool.h"
#include "tests/e2e/daemon_process.h"

namespace kvtier::conformance {

using std::chrono::milliseconds;

inline Deadline soon() {
  return Clock::now() + std::chrono::seconds(60);
}

inline Namespace small_namespace(StorageFormat format, std::uint32_t block_tokens = 16) {
  Namespace ns;
  ns.model = "conformance@1";
  ns.layers = 3;
  ns.kv_heads = 2;
  ns.head_dim_k = 32;
  ns.head_dim_v = 64;
  ns.block_tokens = block_tokens;
  ns.format = format;
  ns.positions = "rope";
  if (format == StorageFormat::raw) {
    ns.raw_bytes = block_tokens * ns.kv_heads * (ns.head_dim_k + ns.head_dim_v) * 2;
    ns.page_layout = "bf16 pages, little-endian";
  }
  return ns;
}

// How far a number may be from what was stored, in pages of bf16.
inline EnginePool::Bound bound_of(StorageFormat format) {
  constexpr double kPage = 1.0 / 256;
  switch (format) {
    case StorageFormat::fp8_e4m3:
      return {1.0 / 16 + kPage, 1.0 / 448 / 1024};
    case StorageFormat::fp8_e5m2:
      return {1.0 / 8 + kPage, 1.0 / 57344 / 1024};
    case StorageFormat::int8:
      return {kPage, 1.0 / 200};
    case StorageFormat::int4:
      // The end of the range with the other sign is a step of eight shorter, and a scale is rounded
      // by up to a sixteenth.
      return {kPage, 1 - 7.0 / 8 * 15 / 16};
    default:
      return {};
  }
}

// 0, 3, 6, ... and back down through what is left: no two pages in a row are neighbours.
inline std::vector<std::uint32_t> scattered(std::uint32_t pages) {
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t first = 0; first < 3; ++first)
    for (std::uint32_t i = first; i < pages; i += 3) numbers.push_back(i);
  return numbers;
}

class ConformanceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    e2e::DaemonOptions options;
    options.host_capacity = "96MiB";
    options.disk_capacity = "256MiB";
    options.extent_size = "4MiB";
    options.segment_size = "4MiB";
    daemon = std::make_unique<e2e::DaemonProcess>(options);
    daemon->start();
  }
  static void TearDownTestSuite() { daemon.reset(); }
  void TearDown() override {
    caches.clear();
    if (daemon) daemon->drop({});
  }

  // Under a tenant of the test's own, so that no test meets what another has stored.
  std::shared_ptr<Cache> open(Namespace& ns) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    ns.tenant = std::string(test->test_suite_name()) + "/" + test->name();
    if (!client) client = Client::start({.socket = daemon->socket(), .slots_ahead = 8}).value();
    auto cache = client->open(ns, soon());
    EXPECT_TRUE(cache) << cache.error().message;
    caches.push_back(*cache);
    return *cache;
  }
  static Prefix prefix_of(const Namespace& ns, std::uint32_t blocks, Token first = 1) {
    Prefix prefix(ns);
    std::vector<Token> tokens(std::size_t{blocks} * ns.block_tokens + 1);
    std::iota(tokens.begin(), tokens.end(), first);
    EXPECT_TRUE(prefix.append(tokens));
    return prefix;
  }

  static Pages pages_of(const EnginePool& pool, const std::vector<std::uint32_t>& numbers) {
    Pages pages;
    pages.pool = &pool.pool();
    pages.numbers = numbers;
    return pages;
  }
  void store(Cache& cache, const Prefix& prefix, const Pages& pages, std::uint32_t blocks) {
    auto write = cache.write_back(prefix, 0, pages, {}, soon());
    write.wait();
    std::string why = write.error() ? write.error()->message : "no error";
    for (std::size_t i = 0; i < kDropReasons; ++i) {
      why += ", " + std::to_string(write.dropped().blocks[i]) + " " + kDropReasonNames[i];
    }
    ASSERT_EQ(write.accepted(), blocks) << why << ", " << write.cached() << " cached";
    const auto flushed = client->flush(soon());
    ASSERT_TRUE(flushed) << flushed.error().message;
  }
  static void drop_from_memory() { daemon->drop(TierSet{}.with(Tier::device).with(Tier::host)); }
  void load_from_disk(Cache& cache, const Prefix& prefix, const Pages& pages,
                      std::uint32_t blocks) {
    auto lease = cache.lease(prefix, {0, blocks}, soon());
    ASSERT_TRUE(lease) << lease.error().message;
    ASSERT_EQ(lease->wait_ready(soon()), blocks);
    for (std::uint32_t block = 0; block < blocks; ++block)
      ASSERT_EQ(lease->source(block), Tier::disk);
    auto load = lease->load_into(pages);
    ASSERT_TRUE(load) << load.error().message;
    ASSERT_EQ(load->finish(), blocks);
  }

  static inline std::unique_ptr<e2e::DaemonProcess> daemon;
  std::shared_ptr<Client> client;
  std::vector<std::shared_ptr<Cache>> caches;
};

}  // namespace kvtier::conformance
