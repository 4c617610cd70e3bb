#include <poll.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/base/check.h"
#include "kvtier/client.h"
#include "tests/protocol/bystanders.h"
#include "tests/protocol/hostile/universe.h"

namespace kvtier::protocol {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kBlocks = 8;
constexpr std::uint32_t kBlockTokens = daemon::testing::kBlockTokens;

// Every word of a payload says whose it is and where.
std::uint64_t word_of(const Key& key, std::size_t at) {
  return key.tail() + at * 0x9E3779B97F4A7C15ULL;
}

// The prompts of one namespace, and pages for one of them.
class Prompts {
 public:
  Prompts(std::shared_ptr<Cache> cache, std::uint32_t prompts)
      : cache_(std::move(cache)),
        prompts_(prompts),
        memory_(kBlocks * cache_->layout().record_bytes) {
    for (std::uint32_t i = 0; i < kBlocks; ++i)
      records_.push_back(memory_.data() + i * cache_->layout().record_bytes);
  }

  Cache& cache() { return *cache_; }
  std::uint32_t prompts() const { return prompts_; }
  // One token more than its blocks: the last is never cached.
  std::vector<Token> tokens(std::uint32_t prompt) const {
    std::vector<Token> tokens(kBlocks * kBlockTokens + 1);
    for (std::uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = prompt * 10'000 + i;
    return tokens;
  }
  void fill(std::span<const Token> tokens) { payloads(tokens, kBlocks, true); }
  // Of the first blocks, those that are not as they were written.
  std::uint32_t wrong(std::span<const Token> tokens, std::uint32_t blocks) {
    return payloads(tokens, blocks, false);
  }
  void spoil() { std::ranges::fill(memory_, std::byte{0xEE}); }
  Pages pages(std::uint32_t first, std::uint32_t blocks) const {
    Pages pages;
    pages.records = std::span(records_).subspan(first, blocks);
    return pages;
  }

 private:
  std::uint32_t payloads(std::span<const Token> tokens, std::uint32_t blocks, bool write) {
    const RecordLayout& layout = cache_->layout();
    const auto keys = chain_keys(cache_->id(), kBlockTokens, tokens);
    std::uint32_t wrong = 0;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      bool right = true;
      for (std::size_t at = 0; at < layout.payload_bytes; at += sizeof(std::uint64_t)) {
        std::uint64_t word = word_of(keys[i], at);
        std::byte* const where = records_[i] + layout.header_bytes + at;
        if (write) {
          std::memcpy(where, &word, sizeof word);
        } else {
          right = right && std::memcmp(where, &word, sizeof word) == 0;
        }
      }
      wrong += right ? 0 : 1;
    }
    return wrong;
  }

  std::shared_ptr<Cache> cache_;
  std::uint32_t prompts_;
  std::vector<std::byte> memory_;
  std::vector<std::byte*> records_;
};

class HonestClient {
 public:
  HonestClient(const std::string& socket, Tally& tally, std::uint64_t seed)
      : tally_(tally), random_(seed) {
    ClientOptions options;
    options.socket = socket;
    options.name = "honest";
    options.slots_ahead = 16;
    client_ = Client::start(options).value();
    prompts_.emplace_back(client_->open(honest_namespace(false)).value(), 40);
    prompts_.emplace_back(client_->open(honest_namespace(true)).value(), 8);
  }

  void run() {
    if (!client_->wait_connected(Clock::now() + seconds(60)))
      return tally_.failures.add("the honest client is not let in");
    tally_.honest.connected = true;
    warm();
    tally_.honest.warm = true;
    while (!tally_.round_over) {
      Prompts& prompts = prompts_[random_.one_in(5) ? 1 : 0];
      ask(prompts, random_.below(prompts.prompts()));
      // An engine computes between its questions.
      ::poll(nullptr, 0, 1);
    }
    tally_.honest.connects += client_->stats().connects;
  }

 private:
  void warm() {
    const auto until = Clock::now() + seconds(20);
    for (Prompts& prompts : prompts_) {
      for (std::uint32_t i = 0; i < prompts.prompts() && Clock::now() < until; ++i) {
        ask(prompts, i);
        client_->flush(Clock::now() + seconds(5)).has_value();
      }
    }
  }

  void ask(Prompts& prompts, std::uint32_t prompt) {
    const auto tokens = prompts.tokens(prompt);
    const std::uint32_t good = load(prompts, tokens);
    tally_.honest.blocks_missed += kBlocks - good;
    if (good == kBlocks) return;
    prompts.fill(tokens);
    auto write = prompts.cache().write_back(tokens, good, prompts.pages(good, kBlocks - good));
    write.wait();
    tally_.honest.blocks_written += write.accepted();
  }

  // The leading blocks that came and are right.
  std::uint32_t load(Prompts& prompts, std::span<const Token> tokens) {
    constexpr seconds kWait{2};
    const bool beside = tally_.fuzzing;
    const std::uint32_t found = prompts.cache().match(tokens).blocks;
    const auto began = Clock::now();
    auto lease = prompts.cache().lease(tokens, found, began + kWait);
    const auto leased = Clock::now();
    if (!lease) {
      tally_.honest.deadlines += lease.error().code == Errc::deadline ? 1 : 0;
      return 0;
    }
    bool all_in_memory = lease->blocks() > 0;
    for (std::uint32_t i = 0; i < lease->blocks(); ++i)
      all_in_memory = all_in_memory && lease->source(i) != Tier::disk;
    const std::uint32_t ready = lease->wait_ready(began + kWait);
    prompts.spoil();
    auto loading = lease->load_into(prompts.pages(0, ready));
    if (!loading) return 0;
    const std::uint32_t good = loading->finish();
    if (tally_.honest.warm && tally_.fuzzing == beside) {
      tally_.honest.lease[beside].add(leased - began);
      auto& took = all_in_memory ? tally_.honest.memory : tally_.honest.disk;
      if (good > 0) took[beside].add(Clock::now() - began);
    }
    const std::uint32_t wrong = prompts.wrong(tokens, good);
    tally_.honest.blocks_right += good - wrong;
    tally_.honest.blocks_wrong += wrong;
    return good;
  }

  Tally& tally_;
  Random random_;
  std::shared_ptr<Client> client_;
  std::vector<Prompts> prompts_;
};

}  // namespace

void run_honest_client(const std::string& socket, Tally& tally, std::uint64_t seed) {
  HonestClient(socket, tally, seed).run();
}

}  // namespace kvtier::protocol
