#include "core/wire/directory.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "core/record/digest.h"

namespace kvtier {
namespace {

Key key_number(std::uint64_t n) {
  return {xxh3_128(std::as_bytes(std::span(&n, 1)))};
}

DirectoryWriter make_directory(std::uint64_t blocks_max) {
  const std::array<std::byte, 16> boot_id{};
  return DirectoryWriter::create(blocks_max, boot_id).value();
}

// Numbers are keys' own numbers here.
void put(DirectoryWriter& writer, std::uint64_t n, TierSet tiers) {
  const Key key = key_number(n);
  const auto number = static_cast<std::uint32_t>(n);
  const bool there =
      writer.number_of(key, [&](std::uint32_t at) { return at == number; }) == number;
  if (!there && !tiers.empty()) writer.insert(key, number);
  if (there && tiers.empty()) return writer.erase(key, number);
  if (!tiers.empty()) writer.set(key, number, tiers);
}

TEST(Directory, ABlockOnAnotherGpuIsWhereElseItIs) {
  auto writer = make_directory(100);
  const Key key = key_number(1);
  const TierSet both = TierSet{}.with(Tier::device).with(Tier::host);
  const auto view_of = [&](std::uint32_t gpu) {
    return DirectoryView::map(writer.fd(), writer.bytes(), gpu).value();
  };
  writer.insert(key, 1);
  for (const std::uint32_t gpu : {0U, 1U, kDirectoryDevicesMax - 1}) {
    writer.set(key, 1, both, gpu);
    for (const std::uint32_t viewer : {0U, 1U, kDirectoryDevicesMax - 1, kNoDevice}) {
      EXPECT_EQ(view_of(viewer).find(key), viewer == gpu ? both : both.without(Tier::device));
      EXPECT_TRUE(view_of(viewer).on_some_gpu(key));
    }
  }
  writer.set(key, 1, TierSet{}.with(Tier::disk));
  EXPECT_EQ(view_of(3).find(key), TierSet{}.with(Tier::disk));
  EXPECT_FALSE(view_of(3).on_some_gpu(key));
  EXPECT_FALSE(view_of(3).on_some_gpu(key_number(2)));
}

TEST(Directory, HoldsWhatAMapHolds) {
  constexpr std::uint64_t kKeys = 1500;
  auto writer = make_directory(1000);
  const auto view = DirectoryView::map(writer.fd(), writer.bytes()).value();
  std::map<std::uint64_t, TierSet> expected;
  std::mt19937_64 random(42);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t n = random() % kKeys;
    TierSet tiers{static_cast<std::uint8_t>(random() % 8)};
    // More often gone than not once it fills up.
    if (expected.size() >= 999 && !expected.contains(n)) tiers = {};
    put(writer, n, tiers);
    if (tiers.empty()) {
      expected.erase(n);
    } else {
      expected[n] = tiers;
    }
    const std::uint64_t probe = random() % kKeys;
    const auto known = expected.find(probe);
    ASSERT_EQ(view.find(key_number(probe)), known == expected.end() ? TierSet{} : known->second);
    ASSERT_EQ(writer.blocks(), expected.size());
  }
  for (std::uint64_t n = 0; n < kKeys; ++n) {
    const auto known = expected.find(n);
    ASSERT_EQ(view.find(key_number(n)), known == expected.end() ? TierSet{} : known->second);
  }
}

TEST(Directory, AReaderNeverSeesAWrongTierSetOfAStableKey) {
  constexpr std::uint64_t kStable = 200;
  auto writer = make_directory(1000);
  const auto view = DirectoryView::map(writer.fd(), writer.bytes()).value();
  const auto tiers_of = [](std::uint64_t n) {
    return TierSet{static_cast<std::uint8_t>(n % 7 + 1)};
  };
  for (std::uint64_t n = 0; n < kStable; ++n) put(writer, n, tiers_of(n));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0}, found{0}, looked{0};
  std::thread reader([&] {
    for (std::uint64_t n = 0; !stop; n = (n + 1) % kStable) {
      const TierSet tiers = view.find(key_number(n));
      ++looked;
      found += !tiers.empty();
      // Advisory: a block that is being moved may be missed, but never mistaken.
      wrong += !tiers.empty() && tiers != tiers_of(n);
    }
  });
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t n = kStable + random() % 600;
    put(writer, n, {static_cast<std::uint8_t>(random() % 3)});
  }
  while (looked < 10'000) std::this_thread::yield();
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(found, looked / 2);
  for (std::uint64_t n = 0; n < kStable; ++n) EXPECT_EQ(view.find(key_number(n)), tiers_of(n));
}

// As a hash collision would have it: blocks whose keys agree in all that the directory keeps, and
// so many in one place that words lie farther from home than a word can tell.
TEST(Directory, KeysAlikeInWhatIsKeptStayBlocksOfTheirOwn) {
  constexpr std::uint32_t kBlocks = 100;
  auto writer = make_directory(kBlocks);
  const auto key_of = [](std::uint32_t n) {
    Key key = key_number(7);
    key.bytes[7] = static_cast<std::byte>(n);  // neither of the first bits nor of the last bytes
    return key;
  };
  const auto there = [&](std::uint32_t wanted) {
    return writer.number_of(key_of(wanted), [&](std::uint32_t n) { return n == wanted; }) == wanted;
  };
  for (std::uint32_t n = 0; n < kBlocks; ++n) writer.insert(key_of(n), n);
  for (std::uint32_t n = 0; n < kBlocks; n += 3) writer.erase(key_of(n), n);
  for (std::uint32_t n = 0; n < kBlocks; ++n) {
    EXPECT_EQ(there(n), n % 3 != 0) << n;
    if (n % 3 != 0) writer.set(key_of(n), n, TierSet{}.with(Tier::disk));
  }
  EXPECT_EQ(writer.find(key_of(0)), TierSet{}.with(Tier::disk)) << "the same to a client";
  for (std::uint32_t n = 0; n < kBlocks; ++n) {
    if (n % 3 != 0) writer.erase(key_of(n), n);
  }
  EXPECT_EQ(writer.find(key_of(1)), TierSet{});
  EXPECT_EQ(writer.blocks(), 0U);
}

TEST(Directory, AForeignDescriptorIsRefused) {
  auto fd = make_memfd("not-a-directory", 1 << 16).value();
  EXPECT_EQ(DirectoryView::map(fd.get(), 1 << 16).error().code, Errc::malformed);
  auto writer = make_directory(100);
  EXPECT_FALSE(DirectoryView::map(writer.fd(), writer.bytes() - 8));
}

TEST(Directory, AReaderCannotMapItWritable) {
  auto writer = make_directory(100);
  EXPECT_FALSE(Mapping::map(writer.fd(), writer.bytes(), Mapping::Access::read_write));
}

}  // namespace
}  // namespace kvtier
