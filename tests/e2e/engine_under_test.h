// An engine with its own client of a daemon, and the same engine without a cache, whose answers are
// right by definition.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/generator.h"
#include "kvtier/client.h"
#include "tests/engine/support.h"

namespace kvtier::e2e {

inline constexpr auto kFormat = StorageFormat::fp8_e4m3;  // where a test is not about formats

inline constexpr std::uint32_t kChunkTokens = 64;
inline constexpr std::uint32_t kPoolPages = 64;

// The same for the same seed: ten whole blocks and one token more.
inline engine::GenerateRequest request_of(const engine::test::TestModel& model, std::uint64_t seed,
                                          std::uint32_t tokens_max) {
  engine::GenerateRequest request;
  request.prompt = engine::test::random_tokens(161, model.config.vocab_size, seed);
  request.tokens_max = tokens_max;
  request.cache_deadline = std::chrono::seconds(10);
  return request;
}

class EngineUnderTest {
 public:
  EngineUnderTest(const engine::test::TestModel& model, StorageFormat format,
                  const std::string& socket)
      : engine_(model, format, kChunkTokens, kPoolPages),
        client_(Client::start({.socket = socket, .name = "test", .slots_ahead = 16}).value()),
        cache_(client_->open(engine_.ns).value()),
        generator_(engine_.llama, *engine_.pool, id_of(engine_.ns), cache_.get(),
                   engine::LoadPolicy::always_load) {}

  engine::GenerateResult answer(const engine::GenerateRequest& request) {
    auto result = generator_.generate(request);
    KVTIER_CHECK(result.has_value());
    return std::move(*result);
  }
  Client& client() { return *client_; }
  Cache& cache() { return *cache_; }
  const RecordLayout& layout() const { return engine_.pool->layout(); }
  // Connected, and with reserved slots at hand, so that nothing is dropped for want of them.
  void wait_connected() {
    const auto give_up = Clock::now() + std::chrono::seconds(30);
    KVTIER_CHECK(client_->wait_connected(give_up).has_value());
    KVTIER_CHECK(client_->flush(give_up).has_value());
  }

 private:
  engine::test::TestEngine engine_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Cache> cache_;
  engine::Generator generator_;
};

class ReferenceEngine {
 public:
  ReferenceEngine(const engine::test::TestModel& model, StorageFormat format)
      : engine_(model, format, kChunkTokens, kPoolPages),
        generator_(engine_.llama, *engine_.pool, id_of(engine_.ns), nullptr) {}

  const std::vector<Token>& answer(const engine::GenerateRequest& request) {
    auto& known = answers_[{request.prompt, request.tokens_max}];
    if (known.empty()) known = generator_.generate(request).value().tokens;
    return known;
  }

 private:
  engine::test::TestEngine engine_;
  engine::Generator generator_;
  std::map<std::pair<std::vector<Token>, std::uint32_t>, std::vector<Token>> answers_;
};

// Prompts that share prefixes: the beginning of one of a few documents, often cut at an exact
// multiple of the block, and then often a question of its own.
class SharedPrompts {
 public:
  SharedPrompts(std::uint32_t vocab, std::uint32_t documents, std::uint64_t seed)
      : vocab_(vocab), random_(seed) {
    for (std::uint32_t i = 0; i < documents; ++i) documents_.push_back(tokens(16 * draw(2, 12)));
  }

  engine::GenerateRequest next() {
    const auto& document = documents_[draw(0, documents_.size() - 1)];
    std::size_t length = draw(1, document.size());
    if (draw(0, 1) == 0) length = std::max<std::size_t>(16, length / 16 * 16);
    engine::GenerateRequest request;
    request.prompt.assign(document.begin(), document.begin() + static_cast<std::ptrdiff_t>(length));
    if (draw(0, 2) != 0) {
      const auto question = tokens(draw(1, 20));
      request.prompt.insert(request.prompt.end(), question.begin(), question.end());
    }
    request.tokens_max = static_cast<std::uint32_t>(draw(1, 6));
    return request;
  }

  std::uint64_t draw(std::uint64_t low, std::uint64_t high) {
    return low + random_() % (high - low + 1);
  }

 private:
  std::vector<Token> tokens(std::uint64_t count) {
    std::vector<Token> made(count);
    for (Token& token : made) token = static_cast<Token>(draw(0, vocab_ - 1));
    return made;
  }

  std::uint32_t vocab_;
  std::mt19937_64 random_;
  std::vector<std::vector<Token>> documents_;
};

}  // namespace kvtier::e2e
