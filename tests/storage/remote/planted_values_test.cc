// Values that do not hold, planted where a store reads them: none is served.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "storage/remote/remote_value.h"
#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

constexpr std::uint32_t kPlanted = 1000;

// What is planted under a record's key in its place, by turns.
std::string planted(std::uint32_t number, const TestRecord& record, const TestRecord& another,
                    std::mt19937& random) {
  std::string value = value_of(record);
  const auto anywhere = [&](std::size_t bytes) { return random() % bytes; };
  switch (number % 8) {
    case 0:
      value.resize(anywhere(value.size()));
      break;  // cut short
    case 1:
      value += std::string(1 + anywhere(5000), 'x');
      break;
    case 2:
      value[anywhere(value.size())] ^= static_cast<char>(1U << random() % 8);
      break;
    case 3:
      value = value_of(another);
      break;  // swapped
    case 4:
      std::ranges::generate(value, [&] { return static_cast<char>(random()); });
      break;
    case 5: {
      // Of another namespace, as long and with checksums that hold.
      TestRecord foreign = record;
      Namespace ns = test_namespace(number % kKinds);
      ns.model = "foreign";
      const RecordLayout layout = RecordLayout::of(ns);
      const std::vector<Token> tokens(layout.block_tokens, number);
      foreign.identity.ns = id_of(ns);
      foreign.identity.key = chain_key(foreign.identity.ns, foreign.identity.parent, tokens);
      write_header(foreign.bytes, layout, foreign.identity, tokens);
      value = value_of(foreign);
      break;
    }
    case 6:
      std::fill(value.begin(), value.begin() + 512, '\0');
      break;
    default: {
      // A page of another record's in the middle.
      const std::string other = value_of(another);
      const std::size_t at = 4096 * (1 + anywhere(value.size() / 4096 - 1));
      value.replace(at, 4096, other.substr(4096, 4096));
    }
  }
  return value;
}

template <class Plant>
void plant_and_read(TestRemote& store, Plant plant) {
  std::mt19937 random(20);
  for (std::uint32_t i = 0; i < kPlanted; ++i) {
    const TestRecord record(i % kKinds, i), another(i % kKinds, i + 5000);
    plant(record.identity.key, planted(i, record, another, random));
    const auto read = store.read(record);
    ASSERT_FALSE(read) << "planted value " << i << " was served";
    ASSERT_EQ(read.error().code, Errc::corrupt) << read.error().message;
  }
  EXPECT_EQ(store->stats().corrupt, kPlanted);
  EXPECT_EQ(store->stats().read_failures, kPlanted);
  EXPECT_EQ(store->stats().records_read, 0U);
}

TEST(PlantedValues, OfAThousandInRedisNoneIsServedAndAllAreDeleted) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  plant_and_read(store, [&](const Key& key, const std::string& value) {
    ASSERT_EQ(server.say({"SET", value_name(key), value}), "OK");
  });
  EXPECT_TRUE(comes_true([&] { return server.say({"DBSIZE"}) == "0"; }));
}

TEST(PlantedValues, OfAThousandInADirectoryNoneIsServedAndAllAreDeleted) {
  const TestDirectory shared;
  OnlineRemote store("file://" + shared.path().string());
  plant_and_read(store, [&](const Key& key, const std::string& value) {
    const std::string name = to_hex(key);
    const auto folder = shared.path() / name.substr(name.size() - 3);
    std::filesystem::create_directories(folder);
    std::ofstream(folder / name, std::ios::binary) << value;
    ASSERT_EQ(std::filesystem::file_size(folder / name), value.size());
  });
  EXPECT_TRUE(comes_true([&] {
    for (const auto& file : std::filesystem::recursive_directory_iterator(shared.path())) {
      if (file.is_regular_file() && file.path().filename() != "FORMAT") return false;
    }
    return true;
  }));
}

TEST(PlantedValues, OfSealedOnesThatWereSwappedOrChangedNoneIsServed) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  const TestDirectory files;
  auto options = TestRemote::options_of(server.url());
  options.key_file = write_file(files, "key", std::string(32, 'k'));
  OnlineRemote store(options);
  std::mt19937 random(21);
  for (std::uint32_t i = 0; i < 200; ++i) {
    const TestRecord record(i % kKinds, i), another(i % kKinds, i + 5000);
    const std::string name = value_name(record.identity.key);
    ASSERT_TRUE(store.write(record));
    std::string value = server.say({"GET", name});
    if (i % 2 == 0) {
      value[random() % value.size()] ^= static_cast<char>(1U << random() % 8);
      ASSERT_EQ(server.say({"SET", name, value}), "OK");
    } else {
      ASSERT_TRUE(store.write(another));
      ASSERT_EQ(server.say({"SET", name, server.say({"GET", value_name(another.identity.key)})}),
                "OK");
    }
    const auto read = store.read(record);
    ASSERT_FALSE(read) << "planted value " << i << " was served";
    ASSERT_EQ(read.error().code, Errc::corrupt);
  }
}

TEST(PlantedValues, WhatIsNoStringIsNoValue) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  const TestRecord record(0, 1);
  server.say({"RPUSH", value_name(record.identity.key), "a", "list"});
  EXPECT_EQ(*store.find({record.identity.key}), 0U);
  EXPECT_EQ(store.read(record).error().code, Errc::corrupt);
  EXPECT_TRUE(comes_true([&] { return server.say({"DBSIZE"}) == "0"; }));
  EXPECT_TRUE(store.works(record));
}

// As long as Redis has them: not received to its end.
TEST(PlantedValues, AHugeOneIsNotWaitedFor) {
  KVTIER_NEEDS_REDIS();
  const RedisServer server;
  OnlineRemote store(server.url());
  const TestRecord huge(0, 1), good(0, 2);
  EXPECT_TRUE(store.write(good));
  server.say({"SETRANGE", value_name(huge.identity.key), "100000000", "x"});
  EXPECT_EQ(store.read(huge).error().code, Errc::corrupt);
  EXPECT_TRUE(store.serves(good));
  EXPECT_TRUE(comes_true([&] { return server.say({"DBSIZE"}) == "1"; }));
}

}  // namespace
}  // namespace kvtier::storage::testing
