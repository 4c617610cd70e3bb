#include "daemon/events/event_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <thread>

#include "daemon/events/replay_buffer.h"

namespace kvtier::daemon::events {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool can_be_read(int fd) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, 0) == 1;
}

TEST(EventQueue, entries_come_out_as_they_went_in_round_and_round) {
  EventQueue queue(64);
  std::vector<std::byte> entry;
  for (int i = 0; i < 1000; ++i) {
    const std::string first(static_cast<std::size_t>(i % 23), 'a'), second = std::to_string(i);
    ASSERT_TRUE(queue.push({bytes_of(first), bytes_of(second)}));
    ASSERT_TRUE(queue.pop(entry));
    ASSERT_EQ(text_of(entry), first + second);
  }
  EXPECT_FALSE(queue.pop(entry));
}

TEST(EventQueue, what_finds_no_room_is_left_out_whole) {
  EventQueue queue(32);
  const std::string ten(10, 'x');
  EXPECT_TRUE(queue.push({bytes_of(ten)}));
  EXPECT_TRUE(queue.push({bytes_of(ten)}));
  EXPECT_EQ(queue.room(), 4U);
  EXPECT_FALSE(queue.push({bytes_of(ten)}));
  EXPECT_EQ(queue.used(), 28U);
  std::vector<std::byte> entry;
  ASSERT_TRUE(queue.pop(entry));
  EXPECT_TRUE(queue.push({bytes_of(ten)}));
}

TEST(EventQueue, only_one_who_sleeps_is_woken) {
  EventQueue queue(1024);
  ASSERT_TRUE(queue.push({bytes_of("1")}));
  EXPECT_FALSE(can_be_read(queue.wake_fd()));
  EXPECT_FALSE(queue.may_sleep());  // there is something to do
  std::vector<std::byte> entry;
  ASSERT_TRUE(queue.pop(entry));
  EXPECT_TRUE(queue.may_sleep());
  ASSERT_TRUE(queue.push({bytes_of("2")}));
  EXPECT_TRUE(can_be_read(queue.wake_fd()));
  queue.awake();
  EXPECT_FALSE(can_be_read(queue.wake_fd()));
  ASSERT_TRUE(queue.pop(entry));
  EXPECT_TRUE(queue.may_sleep());
  queue.lose();
  EXPECT_TRUE(can_be_read(queue.wake_fd()));
  queue.awake();
  EXPECT_FALSE(queue.may_sleep());
  EXPECT_TRUE(queue.take_lost());
  EXPECT_TRUE(queue.may_sleep());
}

TEST(EventQueue, two_threads_lose_and_mix_nothing) {
  EventQueue queue(4096);
  constexpr std::uint64_t kEntries = 200'000;
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kEntries; ++i) {
      const std::string more(i % 31, static_cast<char>(i));
      while (!queue.push({std::as_bytes(std::span(&i, 1)), bytes_of(more)}))
        std::this_thread::yield();
    }
  });
  std::vector<std::byte> entry;
  std::uint64_t wrong = 0;
  for (std::uint64_t expected = 0; expected < kEntries;) {
    if (!queue.pop(entry)) {
      if (queue.may_sleep()) {
        pollfd item{queue.wake_fd(), POLLIN, 0};
        ASSERT_EQ(::poll(&item, 1, 20'000), 1) << "nobody woke it at " << expected;
      }
      queue.awake();
      continue;
    }
    std::uint64_t number = 0;
    std::memcpy(&number, entry.data(), sizeof number);
    const auto fits = [&](std::byte byte) { return byte == std::byte(expected & 0xFF); };
    const std::span more(entry.begin() + sizeof number, entry.end());
    wrong += number != expected || more.size() != expected % 31 || !std::ranges::all_of(more, fits);
    ++expected;
  }
  writer.join();
  EXPECT_EQ(wrong, 0U);
}

TEST(ReplayBuffer, the_oldest_go_so_that_all_fit) {
  ReplayBuffer buffer(1000, 100 + 3 * ReplayBuffer::kBatchBytes);
  EXPECT_TRUE(buffer.has_from(1000));
  EXPECT_FALSE(buffer.has_from(999));
  EXPECT_FALSE(buffer.has_from(1001));
  for (int i = 0; i < 5; ++i)
    buffer.add(std::make_shared<const std::vector<std::uint8_t>>(30, static_cast<std::uint8_t>(i)));
  EXPECT_EQ(buffer.next(), 1005U);
  EXPECT_EQ(buffer.first(), 1002U);
  EXPECT_EQ(buffer.bytes(), 90U + 3 * ReplayBuffer::kBatchBytes);
  EXPECT_EQ(buffer.at(1003)->front(), 3U);
  EXPECT_TRUE(buffer.has_from(1005));
  EXPECT_FALSE(buffer.has_from(1001));
  // One that does not fit alone.
  buffer.add(std::make_shared<const std::vector<std::uint8_t>>(400));
  EXPECT_EQ(buffer.next(), 1006U);
  EXPECT_EQ(buffer.first(), 1006U);
  EXPECT_EQ(buffer.bytes(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::events
