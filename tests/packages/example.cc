// An engine without a model: fills a cache with blocks whose content is known, and looks whether
// they come back. Knows of kvtier what is installed, and nothing else.
//
//   kvtier-example SOCKET fill PROMPTS      of 16 blocks of 1 MiB each
//   kvtier-example SOCKET hit PROMPT        prints where its blocks were and when they had been
//   read
#include <kvtier/client.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

using std::chrono::seconds;

constexpr std::uint32_t kBlocks = 16, kBlockTokens = 16, kLayers = 255, kWidth = 64;
constexpr std::size_t kPage = std::size_t{kBlockTokens} * kWidth;  // bf16 numbers

kvtier::Namespace example_namespace() {
  kvtier::Namespace ns;
  ns.model = "example";
  ns.layers = kLayers;
  ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = kWidth;
  ns.block_tokens = kBlockTokens;
  ns.format = kvtier::StorageFormat::bf16;
  ns.positions = "none";
  return ns;
}

// One token more than its blocks: the last is never cached.
std::vector<kvtier::Token> prompt(std::uint32_t number) {
  std::vector<kvtier::Token> tokens(kBlocks * kBlockTokens + 1);
  for (std::uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = number * 2654435761U + i;
  return tokens;
}

std::uint16_t number_of(std::uint32_t prompt) {
  return static_cast<std::uint16_t>(prompt + 1);
}

// Pages of all layers and blocks, each in memory of its own or all in one place.
struct PageSet {
  explicit PageSet(bool shared, std::uint16_t value = 0)
      : memory(shared ? kPage : kPage * kLayers * kBlocks * 2, value) {
    for (std::size_t i = 0; i < std::size_t{kLayers} * kBlocks; ++i) {
      k.push_back(memory.data() + (shared ? 0 : 2 * i * kPage));
      v.push_back(memory.data() + (shared ? 0 : (2 * i + 1) * kPage));
    }
  }
  kvtier::Pages pages() const {
    kvtier::Pages pages;
    pages.k_pages = k;
    pages.v_pages = v;
    pages.type = kvtier::DType::bf16;
    return pages;
  }
  std::vector<std::uint16_t> memory;
  std::vector<void*> k, v;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "kvtier-example: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
T value_of(kvtier::Result<T> result, const char* what) {
  if (!result) fail(std::string(what) + ": " + result.error().message);
  return std::move(*result);
}

void fill(kvtier::Client& client, kvtier::Cache& cache, std::uint32_t prompts) {
  for (std::uint32_t number = 0; number < prompts; ++number) {
    const auto tokens = prompt(number);
    const PageSet pages(true, number_of(number));
    const auto until = kvtier::Clock::now() + seconds(60);
    // Slots are reserved ahead; where none is at hand, blocks are dropped and offered again.
    while (cache.match(tokens).blocks < kBlocks) {
      if (kvtier::Clock::now() > until) fail("prompt " + std::to_string(number) + " is not taken");
      cache.write_back(tokens, 0, pages.pages()).wait();
      std::this_thread::yield();
    }
  }
  if (auto done = client.flush(kvtier::Clock::now() + seconds(600)); !done)
    fail("flush: " + done.error().message);
}

void hit(kvtier::Cache& cache, std::uint32_t number) {
  const auto tokens = prompt(number);
  const auto until = kvtier::Clock::now() + seconds(20);
  const auto found = cache.match(tokens);
  auto lease = value_of(cache.lease(tokens, found.blocks, until), "lease");
  const std::uint32_t ready = lease.wait_ready(until);
  std::uint32_t from[kvtier::kTiers]{};
  for (std::uint32_t block = 0; block < lease.blocks(); ++block)
    ++from[kvtier::index_of(lease.source(block))];
  PageSet pages(false);
  auto load = value_of(lease.load_into(pages.pages()), "load");
  const std::uint32_t good = load.finish();
  for (std::size_t i = 0; i < std::size_t{kLayers} * kBlocks; ++i) {
    if (i % kBlocks >= good) continue;
    for (std::size_t at = 0; at < 2 * kPage; ++at) {
      if (pages.memory[2 * i * kPage + at] != number_of(number)) fail("other bytes came back");
    }
  }
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf(
      "{\"blocks\": %u, \"device\": %u, \"host\": %u, \"disk\": %u, \"monotonic_us\": %lld}\n",
      good == ready ? good : 0, from[0], from[1], from[2],
      static_cast<long long>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) fail("usage: kvtier-example SOCKET fill|hit NUMBER");
  auto client = value_of(kvtier::Client::start({.socket = argv[1], .name = "example"}), "start");
  if (auto there = client->wait_connected(kvtier::Clock::now() + seconds(20)); !there)
    fail("connect: " + there.error().message);
  const auto cache = value_of(client->open(example_namespace()), "open");
  const auto number = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
  if (std::strcmp(argv[2], "fill") == 0) {
    fill(*client, *cache, number);
  } else {
    hit(*cache, number);
  }
  return 0;
}
