// Slots that idle clients hold: others have theirs all the same.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <numeric>

#include "kvtier/client.h"
#include "tests/e2e/daemon_process.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;

template <class Holds>
bool comes_to_hold(Clock::duration within, Holds&& holds) {
  const auto deadline = Clock::now() + within;
  while (!holds()) {
    if (Clock::now() > deadline) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

// Records of 4 KiB and as many more.
Namespace with_pages(const std::string& model, std::uint32_t pages, const std::string& salt = {}) {
  Namespace ns;
  ns.model = model;
  ns.layers = pages;
  ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = 32;
  ns.block_tokens = 16;
  ns.format = StorageFormat::f32;
  ns.positions = "rope";
  ns.tenant = salt;
  return ns;
}

class LoansTest : public testing::Test {
 protected:
  void start(const DaemonOptions& options) {
    daemon_ = std::make_unique<DaemonProcess>(options);
    daemon_->start();
  }
  std::shared_ptr<Client> client() {
    auto made = Client::start({.socket = daemon_->socket(), .name = "test"}).value();
    EXPECT_TRUE(made->wait_connected(soon()));
    return made;
  }
  static std::vector<Token> prompt(std::size_t blocks) {
    std::vector<Token> tokens(blocks * 16 + 1);
    std::iota(tokens.begin(), tokens.end(), 1);
    return tokens;
  }
  // Offers a prompt of so many blocks; how many of them are found.
  std::uint32_t store(Client& client, Cache& cache, std::size_t blocks) {
    return offer(client, cache, blocks).found;
  }
  struct Offered {
    std::uint32_t accepted = 0, found = 0;
  };
  Offered offer(Client& client, Cache& cache, std::size_t blocks) {
    std::vector<std::vector<std::byte>> memory(
        blocks, std::vector<std::byte>(cache.layout().record_bytes, std::byte{7}));
    std::vector<std::byte*> records;
    for (auto& record : memory) records.push_back(record.data());
    const auto tokens = prompt(blocks);
    Pages pages;
    pages.records = records;
    const auto ready = client.flush(soon());  // slots are at hand
    EXPECT_TRUE(ready) << ready.error().message;
    auto write = cache.write_back(tokens, 0, pages);
    const auto written = client.flush(soon());
    EXPECT_TRUE(written) << written.error().message;
    write.wait();
    const auto found = cache.match(tokens);
    auto lease = cache.lease(tokens, found.blocks, soon());
    EXPECT_TRUE(lease.has_value());
    return {write.accepted(), lease ? lease->wait_ready(soon()) : 0};
  }
  std::unique_ptr<DaemonProcess> daemon_;
};

// 29 of 64 never stored a block.
TEST_F(LoansTest, sixty_four_namespaces_of_six_sizes_from_one_process_all_store_a_prompt) {
  start({.host_capacity = "512MiB", .extent_size = "8MiB", .disk_capacity = ""});
  constexpr std::uint32_t kPages[] = {1, 3, 9, 27, 63, 128};  // up to 516 KiB
  const auto c = client();
  std::vector<std::shared_ptr<Cache>> caches;
  for (std::uint32_t n = 0; n < 64; ++n)
    caches.push_back(c->open(with_pages(std::to_string(n), kPages[n % 6])).value());
  for (const auto& cache : caches) EXPECT_EQ(store(*c, *cache, 4), 4U) << cache->ns().model;
}

TEST_F(LoansTest, namespaces_that_are_opened_one_after_the_other_all_store_a_prompt) {
  start({.host_capacity = "64MiB", .extent_size = "8MiB", .disk_capacity = ""});
  const auto c = client();
  for (const std::uint32_t pages : {1U, 128U, 3U, 63U, 27U, 100U, 9U}) {
    const auto cache = c->open(with_pages(std::to_string(pages), pages)).value();
    // Where seven sizes have eight extents, what was stored may go for another size before it is
    // found.
    EXPECT_EQ(offer(*c, *cache, 6).accepted, 6U) << pages;
    // Of another process, and of one that has nothing.
    const auto other = client();
    const auto theirs = other->open(with_pages("other " + std::to_string(pages), pages)).value();
    EXPECT_GE(offer(*other, *theirs, 4).accepted, 1U) << pages;
  }
}

TEST_F(LoansTest, a_tenant_with_a_small_quota_stores_its_largest_size) {
  start({.host_capacity = "64MiB",
         .extent_size = "8MiB",
         .disk_capacity = "",
         .more = "[[tenant]]\nname = 'a'\nsalts = ['a']\n[tenant.quota]\nhost = '4MiB'\n"
                 "[[tenant]]\nname = 'b'\nsalts = ['b']\nisolated = true\n"
                 "[tenant.quota]\nhost = '8MiB'\n"});
  const auto c = client();
  for (const std::string salt : {"a", "b"}) {
    const auto small = c->open(with_pages("s", 1, salt)).value();
    EXPECT_EQ(store(*c, *small, 6), 6U) << salt;
    const auto large = c->open(with_pages("l", 128, salt)).value();
    EXPECT_GE(store(*c, *large, 3), 1U) << salt;
  }
}

// With 51 slots idle and all leases released, 25 MB stayed for as long as the client did.
TEST_F(LoansTest, a_lowered_cap_is_reached_within_two_seconds_though_clients_are_idle) {
  DaemonOptions options{.host_capacity = "32MiB", .extent_size = "4MiB", .disk_capacity = ""};
  start(options);
  const auto c = client(), other = client();
  std::vector<std::shared_ptr<Cache>> caches;
  for (const auto& of : {c, other}) {
    for (const std::uint32_t pages : {1U, 9U, 63U})
      caches.push_back(of->open(with_pages(std::to_string(pages), pages)).value());
  }
  for (std::size_t i = 0; i < caches.size(); ++i) store(i < 3 ? *c : *other, *caches[i], 12);
  for (int i = 0; i < 8; ++i) {
    const auto more = c->open(with_pages("fill " + std::to_string(i), 32)).value();
    store(*c, *more, 24);
    caches.push_back(more);
  }
  ASSERT_GT(daemon_->status().taken_bytes[index_of(Tier::host)], 16U << 20);
  ASSERT_GT(daemon_->status().reserved, 0U);
  options.host_capacity = "8MiB";
  daemon_->reload(options);
  EXPECT_TRUE(comes_to_hold(2s, [&] {
    return daemon_->status().taken_bytes[index_of(Tier::host)] <= 8U << 20;
  })) << daemon_->status().taken_bytes[index_of(Tier::host)];
  EXPECT_EQ(daemon_->status().cap_bytes[index_of(Tier::host)], 8U << 20);
}

TEST_F(LoansTest, the_slots_of_a_cache_that_is_closed_are_free) {
  start({.host_capacity = "64MiB", .disk_capacity = ""});
  const auto c = client();
  auto first = c->open(with_pages("1", 1)).value(), second = c->open(with_pages("2", 3)).value();
  ASSERT_TRUE(c->flush(soon()));
  ASSERT_EQ(daemon_->status().reserved, 128U);
  first.reset();
  EXPECT_TRUE(comes_to_hold(20s, [&] { return daemon_->status().reserved == 64; }));
  second.reset();
  EXPECT_TRUE(comes_to_hold(20s, [&] { return daemon_->status().reserved == 0; }));
  EXPECT_TRUE(c->connected());
}

// Each process may have a quarter of what those before it have left.
TEST_F(LoansTest, a_client_that_stands_still_keeps_its_slots_and_nobody_else_waits_for_them) {
  start({.host_capacity = "64MiB", .extent_size = "8MiB", .disk_capacity = ""});
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto still = Client::start({.socket = daemon_->socket(), .slots_ahead = 1024}).value();
    const auto cache = still->open(with_pages("still", 63)).value();
    const bool good = still->wait_connected(soon()) && still->flush(soon());
    (void)!::write(ready[1], good ? "y" : "n", 1);
    ::pause();
  }
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  const auto held = daemon_->status().reserved;
  EXPECT_GT(held, 0U);
  const auto c = client();
  for (const std::uint32_t pages : {1U, 9U, 128U}) {
    const auto cache = c->open(with_pages(std::to_string(pages), pages)).value();
    EXPECT_EQ(store(*c, *cache, 6), 6U) << pages;
  }
  EXPECT_GE(daemon_->status().reserved, held) << "nobody else may write to what it may be filling";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace kvtier::e2e
