// Segment files damaged under the store: every damaged record is `corrupt`, every other one right.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/base/fd.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

constexpr std::uint32_t kRecords = 12;  // of each kind, in a segment each
constexpr unsigned kCases = 10'000;

class DamagedSegments {
 public:
  explicit DamagedSegments(const std::filesystem::path& directory)
      : store_(small_options(directory)) {
    for (unsigned kind = 0; kind < kKinds; ++kind) {
      for (std::uint32_t n = 0; n < kRecords; ++n) {
        EXPECT_TRUE(store_.write(TestRecord(kind, n), {kind, n}));
      }
      const auto path = directory / "segments" / ("00000" + std::to_string(kind) + ".seg");
      files_[kind] = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    }
  }

  std::vector<std::byte> slot(unsigned kind, std::uint32_t n) {
    std::vector<std::byte> bytes(record_bytes(kind));
    EXPECT_EQ(::pread(files_[kind].get(), bytes.data(), bytes.size(), offset(kind, n)),
              static_cast<ssize_t>(bytes.size()));
    return bytes;
  }

  void set_slot(unsigned kind, std::uint32_t n, const std::vector<std::byte>& bytes) {
    EXPECT_EQ(::pwrite(files_[kind].get(), bytes.data(), bytes.size(), offset(kind, n)),
              static_cast<ssize_t>(bytes.size()));
  }

  void expect_corrupt(unsigned kind, std::uint32_t n) {
    const auto found = store_.read(TestRecord(kind, n), {kind, n});
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Errc::corrupt);
  }

  void expect_right(unsigned kind, std::uint32_t n) {
    const TestRecord record(kind, n);
    const auto found = store_.read(record, {kind, n});
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(record.equals(*found));
  }

 private:
  static off_t offset(unsigned kind, std::uint32_t n) {
    return static_cast<off_t>(4096 + n * record_bytes(kind));
  }

  TestStore store_;
  UniqueFd files_[kKinds];
};

std::uint32_t below(std::mt19937& random, std::uint32_t bound) {
  return static_cast<std::uint32_t>(random() % bound);
}

// Makes the record of slot n wrong in one of the ways that disks have; returns the other slot it
// harmed, or n itself.
std::uint32_t damage(DamagedSegments& segments, unsigned kind, std::uint32_t n,
                     std::mt19937& random) {
  auto bytes = segments.slot(kind, n);
  const std::uint32_t other = (n + 1 + below(random, kRecords - 1)) % kRecords;
  const auto others = segments.slot(kind, other);
  const std::size_t sectors = bytes.size() / 512;
  const auto cut = static_cast<long>((1 + random() % (sectors - 1)) * 512);
  switch (random() % 6) {
    case 0:  // one bit flipped
      bytes[random() % bytes.size()] ^= std::byte(1U << random() % 8);
      break;
    case 1:  // torn: the beginning of another record over this one
      std::copy(others.begin(), others.begin() + cut, bytes.begin());
      break;
    case 2:  // torn: the end never written
      std::fill(bytes.begin() + cut, bytes.end(), std::byte{0});
      break;
    case 3:  // another record's write went here
      bytes = others;
      break;
    case 4:  // lost: zeroes
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      break;
    default:  // swapped
      segments.set_slot(kind, other, bytes);
      segments.set_slot(kind, n, others);
      return other;
  }
  segments.set_slot(kind, n, bytes);
  return n;
}

TEST(Corruption, EveryDamagedRecordIsCorruptAndNeverWrongBytes) {
  const TestDirectory directory;
  DamagedSegments segments(directory.path());
  for (unsigned seed = 0; seed < kCases && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const unsigned kind = random() % kKinds;
    const std::uint32_t n = below(random, kRecords);
    std::vector<std::vector<std::byte>> before;
    for (std::uint32_t i = 0; i < kRecords; ++i) before.push_back(segments.slot(kind, i));

    const std::uint32_t also = damage(segments, kind, n, random);
    segments.expect_corrupt(kind, n);
    segments.expect_corrupt(kind, also);
    const std::uint32_t innocent = below(random, kRecords);
    if (innocent != n && innocent != also) segments.expect_right(kind, innocent);

    for (std::uint32_t i = 0; i < kRecords; ++i) segments.set_slot(kind, i, before[i]);
    segments.expect_right(kind, n);
  }
}

}  // namespace
}  // namespace kvtier::storage
