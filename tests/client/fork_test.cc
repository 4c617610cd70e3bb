// A client in a fork of its process: its threads are not there.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/client/fixture.h"
#include "tests/daemon/support/forked.h"

namespace kvtier::test {
namespace {

class ForkTest : public ClientTest {
 protected:
  // What a child that does `work` exits with; -1 where it does not end in time, or crashes.
  template <class Work>
  static int in_child(Work&& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      expect_threads_in_the_child();
      ::_exit(work());
    }
    int status = 0;
    const Deadline deadline = soon();
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        return -1;
      }
      std::this_thread::yield();
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::vector<Token> prompt = prompt_of(64 + 1);
};

// A load in the child hung for 20 s, and closing the client aborted.
TEST_F(ForkTest, a_client_is_a_miss_in_the_child_and_goes_on_in_the_parent) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  ASSERT_EQ(lease->wait_ready(soon()), 4U);
  RecordPages pages(4, layout.record_bytes), written(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  auto write = cache->write_back(prompt_of(64, 9000), 0, written.pages());
  const int failed_at = in_child([&] {
    if (client->connected()) return 1;
    if (client->wait_connected(soon()) || client->flush(soon())) return 2;
    if (cache->match(prompt).blocks != 0) return 3;
    const auto none = cache->lease(prompt, 4, soon());
    if (none || none.error().code != Errc::unavailable) return 4;
    if (lease->held() || lease->blocks() != 0 || lease->wait_ready(soon()) != 0) return 5;
    if (lease->load_into(pages.pages())) return 6;
    load->wait_layer(0);
    if (!load->ended() || load->finish() != 0 || load->blocks() != 0) return 7;
    auto dropped = cache->write_back(prompt, 0, written.pages());
    dropped.wait();
    if (dropped.accepted() != 0 || !dropped.ended()) return 8;
    write.wait();
    if (write.accepted() != 0) return 9;
    if (client->open(small_namespace(StorageFormat::bf16))) return 10;
    // Nor does taking all of it apart do anything.
    { const auto ended = std::move(*load); }
    { const auto ended = std::move(write); }
    { const auto ended = std::move(*lease); }
    cache.reset();
    client.reset();
    return 0;
  });
  EXPECT_EQ(failed_at, 0);
  EXPECT_EQ(load->finish(), 4U);
  EXPECT_TRUE(lease->held());
  lease->release();
  EXPECT_EQ(cache->lease(prompt, 4, soon())->blocks(), 4U);
  EXPECT_EQ(client->stats().connects, 1U);
  EXPECT_TRUE(client->flush(soon()));
}

TEST_F(ForkTest, leases_that_are_asked_for_and_stores_by_layer_are_misses_in_the_child_too) {
  cache_prompt(prompt);
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  Prefix prefix(ns), other(ns);
  ASSERT_TRUE(prefix.append(prompt));
  ASSERT_TRUE(other.append(prompt_of(64, 9000)));
  RecordPages pages(4, layout.record_bytes);
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  auto asked = cache->lease_async(prefix, {0, 4}, soon());
  ASSERT_TRUE(asked);
  bool called = false;
  asked->on_settled([&] { called = true; });
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.seen.contains(Which::LEASE); }));
  auto store = cache->begin_store(other, 0, pages.pages());
  ASSERT_TRUE(store);
  ASSERT_TRUE(store->layer(0));
  const int failed_at = in_child([&] {
    if (cache->lease_async(prefix, {0, 4}, soon()).error().code != Errc::unavailable) return 1;
    if (cache->begin_store(other, 0, pages.pages()).error().code != Errc::unavailable) return 2;
    if (cache->state().error().code != Errc::unavailable) return 3;
    if (cache->wait_open(soon()).error().code != Errc::unavailable) return 4;
    if (asked->state() != LeaseState::lost || !asked->error() || asked->event_fd()) return 5;
    if (!asked->settled_at() || asked->wait_ready(soon()) != 0) return 6;
    if (store->blocks() != 0 || store->layer(1)) return 7;
    if (auto write = store->commit(); !write.ended() || write.accepted() != 0) return 8;
    { const auto ended = std::move(*asked); }
    { const auto ended = std::move(*store); }
    cache.reset();
    client.reset();
    return called ? 9 : 0;
  });
  EXPECT_EQ(failed_at, 0);
  daemon.answer_ignored();
  EXPECT_EQ(asked->wait_ready(soon()), 4U);
  ASSERT_TRUE(store->layer(1));
  ASSERT_TRUE(store->layer(2));
  auto write = store->commit();
  write.wait();
  EXPECT_EQ(write.accepted(), 4U);
}

TEST_F(ForkTest, a_client_that_is_started_in_the_child_has_nothing_to_do_with_the_parents) {
  cache_prompt(prompt);
  start_connected();
  const int failed_at = in_child([&] {
    client.reset();
    ClientOptions options;
    options.socket = daemon.socket();
    // Nobody answers it there: the daemon of this test is threads of the parent.
    auto own = Client::start(options);
    if (!own) return 1;
    own->reset();
    return 0;
  });
  EXPECT_EQ(failed_at, 0);
  EXPECT_EQ(cache->lease(prompt, 4, soon())->blocks(), 4U);
}

}  // namespace
}  // namespace kvtier::test
