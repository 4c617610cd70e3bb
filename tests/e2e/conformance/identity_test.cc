// What makes two blocks the same: tokens and what they stand for, or the engine's own digests. And
// what is left of a store that did not end.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/e2e/conformance/conformance.h"

namespace kvtier::conformance {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

class Identity : public ConformanceTest {
 protected:
  static constexpr std::uint32_t kBlocks = 3;

  void store_some(Cache& cache, const Prefix& prefix) {
    EnginePool pool(cache.ns(), Layout::planes_nhd, DType::bf16, kBlocks, 0);
    const auto numbers = scattered(kBlocks);
    pool.fill(numbers);
    store(cache, prefix, pages_of(pool, numbers), kBlocks);
  }
  std::string load_some(Cache& cache, const Prefix& prefix) {
    EnginePool pool(cache.ns(), Layout::planes_nhd, DType::bf16, kBlocks, 0);
    const auto numbers = scattered(kBlocks);
    drop_from_memory();
    load_from_disk(cache, prefix, pages_of(pool, numbers), kBlocks);
    return pool.check(numbers, {});
  }
};

class ImageBytes : public Identity {
 protected:
  ImageBytes() : ns(small_namespace(StorageFormat::bf16)) { ns.extra_bytes_max = 64; }
  // Tokens 20 to 40, of blocks 1 and 2, stand for `image`.
  Prefix with_image(const std::string& image) const {
    Prefix prefix(ns);
    EXPECT_TRUE(prefix.cover(20, 40, bytes_of(image)));
    std::vector<Token> tokens(kBlocks * ns.block_tokens + 1);
    std::iota(tokens.begin(), tokens.end(), 1);
    EXPECT_TRUE(prefix.append(tokens));
    return prefix;
  }
  Namespace ns;
};

TEST_F(ImageBytes, BlocksWithEqualOnesMeet) {
  auto cache = open(ns);
  store_some(*cache, with_image("sha256 of a cat"));
  EXPECT_EQ(cache->match(with_image("sha256 of a cat")).blocks, kBlocks);
  EXPECT_EQ(load_some(*cache, with_image("sha256 of a cat")), "");
}

TEST_F(ImageBytes, BlocksOfTheSameTokensWithOthersNeverMeet) {
  auto cache = open(ns);
  store_some(*cache, with_image("sha256 of a cat"));
  for (const char* image : {"sha256 of a dog", "sha256 of a ca", "sha256 of a cat "}) {
    const Prefix other = with_image(image);
    EXPECT_EQ(cache->match(other).blocks, 1U) << "the block before the image";
    auto lease = cache->lease(other, {0, kBlocks}, soon());
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->blocks(), 1U);
  }
  const Prefix none = prefix_of(ns, kBlocks);
  EXPECT_EQ(cache->match(none).blocks, 1U);
}

TEST_F(ImageBytes, WhereTheyBeginIsPartOfThem) {
  auto cache = open(ns);
  store_some(*cache, with_image("sha256 of a cat"));
  Prefix moved(ns);
  ASSERT_TRUE(moved.cover(21, 40, bytes_of("sha256 of a cat")));
  std::vector<Token> tokens(kBlocks * ns.block_tokens + 1);
  std::iota(tokens.begin(), tokens.end(), 1);
  ASSERT_TRUE(moved.append(tokens));
  EXPECT_EQ(cache->match(moved).blocks, 1U);
}

TEST_F(Identity, BlocksMayBeNamedByTheEnginesOwnDigests) {
  Namespace ns = small_namespace(StorageFormat::bf16);
  ns.digest_bytes = 32;
  auto cache = open(ns);
  const auto named = [&](char last) {
    Prefix prefix(ns);
    for (std::uint32_t i = 0; i < kBlocks; ++i)
      EXPECT_TRUE(prefix.append_digest(
          bytes_of(std::string(31, static_cast<char>('a' + i)) + (i + 1 == kBlocks ? last : '.'))));
    return prefix;
  };
  store_some(*cache, named('x'));
  EXPECT_EQ(cache->match(named('x')).blocks, kBlocks);
  EXPECT_EQ(cache->match(named('y')).blocks, kBlocks - 1);
  EXPECT_EQ(load_some(*cache, named('x')), "");
}

TEST_F(Identity, TenantsDoNotMeet) {
  Namespace ns = small_namespace(StorageFormat::bf16);
  auto cache = open(ns);
  store_some(*cache, prefix_of(ns, kBlocks));
  Namespace other = ns;
  other.tenant += "'s neighbour";
  auto of_other = client->open(other, soon()).value();
  EXPECT_EQ(of_other->match(prefix_of(other, kBlocks)).blocks, 0U);
}

class ByLayer : public Identity {};

TEST_F(ByLayer, ABlockStoredLayerByLayerIsTheSame) {
  Namespace ns = small_namespace(StorageFormat::fp8_e4m3);
  auto cache = open(ns);
  const Prefix prefix = prefix_of(ns, kBlocks);
  EnginePool pool(ns, Layout::interleaved_nhd, DType::bf16, kBlocks * 16, 1);
  const auto numbers = scattered(kBlocks * 16);
  pool.fill(numbers);
  auto begun = cache->begin_store(prefix, 0, pages_of(pool, numbers), soon());
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(cache->match(prefix).blocks, 0U);
  for (std::uint32_t layer = 0; layer < ns.layers; ++layer) ASSERT_TRUE(begun->layer(layer));
  EXPECT_EQ(cache->match(prefix).blocks, 0U) << "not before it is committed";
  auto write = begun->commit();
  write.wait();
  ASSERT_EQ(write.accepted(), kBlocks);
  ASSERT_TRUE(client->flush(soon()));
  drop_from_memory();
  EnginePool target(ns, Layout::planes_hnd, DType::bf16, kBlocks, 0);
  load_from_disk(*cache, prefix, pages_of(target, scattered(kBlocks)), kBlocks);
  EXPECT_EQ(target.check(scattered(kBlocks), bound_of(ns.format)), "");
}

// The child says with a byte that it has handed over all layers but the last, and waits to be
// killed.
[[noreturn]] void store_half(const std::string& socket, const Namespace& ns, int told) {
  auto client = Client::start({.socket = socket}).value();
  auto cache = client->open(ns, soon()).value();
  std::vector<Token> tokens(3 * ns.block_tokens + 1);
  std::iota(tokens.begin(), tokens.end(), 1);
  Prefix prefix(ns);
  (void)prefix.append(tokens);
  EnginePool pool(ns, Layout::planes_nhd, DType::bf16, 3, 0);
  const auto numbers = scattered(3);
  pool.fill(numbers);
  Pages pages;
  pages.pool = &pool.pool();
  pages.numbers = numbers;
  auto store = cache->begin_store(prefix, 0, pages, soon()).value();
  for (std::uint32_t layer = 0; layer + 1 < ns.layers; ++layer) (void)store.layer(layer);
  const bool copied = client->flush(soon()).has_value();
  [[maybe_unused]] const auto written = ::write(told, copied ? "y" : "n", 1);
  for (;;) ::pause();
}

TEST_F(ByLayer, KilledInTheMiddleNothingIsThereAndItsSlotsComeBack) {
  Namespace ns = small_namespace(StorageFormat::bf16);
  ns.tenant = "killed in the middle";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) store_half(daemon->socket(), ns, ends[1]);
  char copied = 0;
  ASSERT_EQ(::read(ends[0], &copied, 1), 1);
  ASSERT_EQ(copied, 'y');
  EXPECT_GT(daemon->status().reserved, 0U);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const Deadline deadline = soon();
  while (daemon->status().reserved > 0 && Clock::now() < deadline) ::usleep(1000);
  EXPECT_EQ(daemon->status().reserved, 0U);
  client = Client::start({.socket = daemon->socket()}).value();
  auto cache = client->open(ns, soon()).value();
  EXPECT_EQ(cache->match(prefix_of(ns, kBlocks)).blocks, 0U);
  auto lease = cache->lease(prefix_of(ns, kBlocks), {0, kBlocks}, soon());
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->blocks(), 0U);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(Identity, ATierThatStillGrowsTakesWhatItIsGivenTimeFor) {
  // The first store after the start: no extent is there yet.
  e2e::DaemonProcess fresh(e2e::DaemonOptions{.host_capacity = "64MiB", .extent_size = "4MiB"});
  fresh.start();
  Namespace ns = small_namespace(StorageFormat::f32);
  auto own = Client::start({.socket = fresh.socket(), .slots_ahead = 4}).value();
  auto cache = own->open(ns, soon()).value();
  constexpr std::uint32_t kMany = 100;
  EnginePool pool(ns, Layout::planes_nhd, DType::bf16, kMany, 0);
  const auto numbers = scattered(kMany);
  pool.fill(numbers);
  auto write = cache->write_back(prefix_of(ns, kMany), 0, pages_of(pool, numbers), {}, soon());
  write.wait();
  EXPECT_EQ(write.accepted(), kMany);
  EXPECT_EQ(write.dropped().total(), 0U);
}

}  // namespace
}  // namespace kvtier::conformance
