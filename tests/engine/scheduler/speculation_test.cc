// Tokens that are proposed, computed, and kept or taken back.
#include "engine_adapter/reference/scheduler/speculation/speculation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine_adapter/reference/scheduler/limits.h"
#include "tests/engine/scheduler/engine_parts.h"

namespace kvtier::engine::test {
namespace {

constexpr std::uint32_t kBlock = 16;
const SchedulerOptions kSpeculating{.speculation = {.proposals_max = 8}};

class SpeculationTest : public ScheduledTest {
 protected:
  // A workload with `options` and without.
  static SchedulerMetrics compare_with_plain_decoding(const SchedulerOptions& options,
                                                      std::uint64_t seed);
  // Its last tokens were there before, so something is proposed from the second token on.
  static Request repeating(std::size_t prompt, std::uint32_t tokens_max, std::uint64_t seed) {
    Request made = request(prompt, tokens_max, seed);
    for (std::size_t i = 11; i < prompt; ++i) made.prompt[i] = made.prompt[i - 11];
    return made;
  }
};

TEST(NgramsTest, WhatFollowedTheLastTimeIsProposed) {
  Ngrams ngrams;
  std::vector<Token> tokens{1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 8, 1, 2, 3};
  EXPECT_EQ(ngrams.propose(tokens, 3), (std::vector<Token>{5, 6, 7}));
  tokens.push_back(4);
  EXPECT_EQ(ngrams.propose(tokens, 2), (std::vector<Token>{9, 1})) << "of 2 3 4";
  tokens.push_back(40);
  EXPECT_TRUE(ngrams.propose(tokens, 2).empty()) << "3 4 40 is new";
}

TEST(NgramsTest, ARepetitionGoesOn) {
  EXPECT_EQ(Ngrams().propose(std::vector<Token>{7, 8, 7, 8, 7}, 5),
            (std::vector<Token>{8, 7, 8, 7, 8}));
  EXPECT_EQ(Ngrams().propose(std::vector<Token>{5, 5, 5, 5}, 3), (std::vector<Token>{5, 5, 5}));
  EXPECT_TRUE(Ngrams().propose(std::vector<Token>{5, 5, 5}, 3).empty());
  EXPECT_TRUE(Ngrams().propose({}, 3).empty());
}

TEST(NgramsTest, WhatIsProposedFollowedTheSameTokensBefore) {
  const auto tokens = random_tokens(3000, 6, 4);
  Ngrams ngrams;
  std::size_t found = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const auto seen = std::span(tokens).first(i);
    const auto proposed = ngrams.propose(seen, 1);
    if (i % 97 == 0) {
      EXPECT_EQ(proposed, Ngrams().propose(seen, 1)) << "whenever it was asked before";
    }
    if (proposed.empty()) continue;
    ++found;
    std::vector<Token> run(seen.end() - kNgramTokens, seen.end());
    run.push_back(proposed[0]);
    ASSERT_FALSE(std::ranges::search(seen, run).empty()) << i;
  }
  EXPECT_GT(found, 2500U);
}

TEST(SpeculationOptionsTest, AreParsedOrRefusedWithWhatMayBeSaid) {
  EXPECT_EQ(SpeculationOptions::parse("").value().proposals_max, 0U);
  EXPECT_EQ(SpeculationOptions::parse("ngram").value().proposals_max, kProposalsUsual);
  EXPECT_EQ(SpeculationOptions::parse("ngram:3").value().proposals_max, 3U);
  EXPECT_FALSE(SpeculationOptions::parse("ngram:3").value().by_draft);
  EXPECT_TRUE(SpeculationOptions::parse("draft:3").value().by_draft);
  SchedulerOptions options;
  options.speculation = SpeculationOptions::parse("draft").value();
  EXPECT_FALSE(options.validate()) << "no draft model";
  for (const char* wrong :
       {"ngram:", "ngram:0", "ngram:15", "ngram:4x", "ngram4", "draft:15", "eagle"}) {
    const auto parsed = SpeculationOptions::parse(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_NE(parsed.error().message.find("ngram:N"), std::string::npos);
  }
}

// Every place in a block to begin, every number of rows, and every number of them that stays.
TEST_F(SpeculationTest, WhatIsTakenBackLeavesNothingBehind) {
  const auto tokens = random_tokens(70, model_->config.vocab_size, 1);
  auto wrong = tokens;
  for (Token& token : wrong) token = (token + 1) % model_->config.vocab_size;
  TestEngine engine(*model_, kScheduledFormat, 64, 16);
  const auto expected = logits_of(engine.llama, *engine.pool, tokens, 64, 1);
  std::vector<float> logits(model_->config.vocab_size);
  for (std::uint32_t begin = 16; begin < 32; ++begin) {
    for (std::uint32_t rows = 2; rows <= kProposalsMax + 1; ++rows) {
      for (std::uint32_t kept = 1; kept < rows; ++kept) {
        Sequence sequence(*engine.pool, id_of(engine.ns), 128);
        const auto step = [&](std::span<const Token> fed) {
          const StepInput input{&sequence, fed, 1};
          ASSERT_TRUE(engine.llama.step({&input, 1}, logits));
        };
        step(std::span(tokens).first(begin));
        auto fed = std::vector(tokens.begin() + begin, tokens.begin() + begin + kept);
        fed.insert(fed.end(), wrong.begin() + begin + kept, wrong.begin() + begin + rows);
        step(fed);
        sequence.take_back(begin + kept);
        ASSERT_EQ(sequence.records().size(), (begin + kept + kBlock - 1) / kBlock);
        ASSERT_EQ(engine.pool->pages_free() + sequence.records().size(), 16U);
        step(std::span(tokens).subspan(begin + kept));
        ASSERT_EQ(logits, expected) << begin << " " << rows << " " << kept;
        for (std::uint32_t block = 0; block < sequence.blocks_complete(); ++block) {
          const Key parent = block == 0 ? Key{} : sequence.key(block - 1);
          const auto own = std::span(tokens).subspan(block * kBlock, kBlock);
          ASSERT_EQ(sequence.key(block), chain_key(id_of(engine.ns), parent, own));
        }
      }
    }
  }
}

SchedulerMetrics SpeculationTest::compare_with_plain_decoding(const SchedulerOptions& options,
                                                              std::uint64_t seed) {
  FakeCache plain_cache = make_cache(), cache = make_cache();
  Scheduled plain(*model_, &plain_cache, 200), speculating(*model_, &cache, 200, options);
  Workload workload(model_->config.vocab_size, seed);
  std::vector<std::pair<std::shared_ptr<Collected>, std::shared_ptr<Collected>>> both;
  for (int i = 0; i < 20; ++i) {
    Request each = workload.next();
    if (i % 2 == 0) each = repeating(40 + 7 * i, 60, seed * 100 + i);
    if (i % 4 == 0) each.sampling = {.temperature = 0.3, .top_p = 0.9, .seed = seed + i};
    if (i % 5 == 0) each.samples = 3;
    if (i % 3 == 0) each.logprobs = true;
    if (i % 6 == 0) each.top_logprobs = 4;
    if (i % 7 == 0) each.stop_tokens = {4, 40};
    both.emplace_back(plain.add(each), speculating.add(each));
  }
  plain.run();
  speculating.run();
  for (const auto& [one, other] : both) {
    EXPECT_EQ(one->result->answers.size(), other->result->answers.size());
    for (std::size_t i = 0; i < one->result->answers.size(); ++i) {
      const Answer &a = one->result->answers[i], &b = other->result->answers[i];
      EXPECT_EQ(one->tokens(i), other->tokens(i));
      EXPECT_EQ(a.finish, b.finish);
      EXPECT_EQ(other->seen[static_cast<std::uint32_t>(i)], other->tokens(i));
      for (std::size_t t = 0; t < std::min(a.tokens.size(), b.tokens.size()); ++t) {
        EXPECT_EQ(a.tokens[t].logprob, b.tokens[t].logprob);
        EXPECT_EQ(a.tokens[t].top, b.tokens[t].top);
      }
    }
    EXPECT_EQ(one->result->usage.completion_tokens, other->result->usage.completion_tokens);
  }
  EXPECT_EQ(cache.records, plain_cache.records) << "the same blocks, to the last bit";
  EXPECT_EQ(speculating.engine().metrics().pages_used, 0U);
  EXPECT_EQ(plain.engine().metrics().tokens_proposed, 0U);
  return speculating.engine().metrics();
}

TEST_F(SpeculationTest, AnswersAndWhatTheCacheIsOfferedAreThoseOfPlainDecoding) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const SchedulerMetrics metrics = compare_with_plain_decoding(kSpeculating, seed);
    EXPECT_GT(metrics.tokens_accepted, 0U);
    EXPECT_GT(metrics.tokens_proposed, metrics.tokens_accepted);
  }
}

// ---- a draft model

struct DraftEngine {
  DraftEngine(const TestModel& model, std::uint32_t pages)
      : engine(model, kScheduledFormat, 64, pages) {}
  SchedulerOptions options() {
    return {.speculation = {.proposals_max = 5,
                            .by_draft = true,
                            .draft = &engine.llama,
                            .draft_pool = engine.pool.get()}};
  }
  TestEngine engine;
};

TEST_F(SpeculationTest, ADraftModelThatIsTheModelIsAlwaysRight) {
  DraftEngine draft(*model_, 200);
  const SchedulerMetrics metrics = compare_with_plain_decoding(draft.options(), 1);
  EXPECT_GT(metrics.tokens_proposed, 0U);
  EXPECT_EQ(metrics.tokens_accepted, metrics.tokens_proposed) << "sampled ones, too";
  EXPECT_EQ(draft.engine.pool->pages_free(), 200U);
}

TEST_F(SpeculationTest, AnotherDraftModelChangesNoAnswer) {
  const auto other = TestModel::make_small(2);
  DraftEngine draft(*other, 200);
  const SchedulerMetrics metrics = compare_with_plain_decoding(draft.options(), 2);
  EXPECT_GT(metrics.tokens_proposed, 2 * metrics.tokens_accepted);
  EXPECT_EQ(draft.engine.pool->pages_free(), 200U);
}

TEST_F(SpeculationTest, ADraftModelWithoutPagesProposesNothingAndOneForALongTextItsEnd) {
  DraftEngine small(*model_, 3);
  Scheduled scheduled(*model_, nullptr, 64, small.options());
  const auto collected = scheduled.add(request(100, 20));
  scheduled.run();
  EXPECT_EQ(collected->tokens(), alone(request(100, 20)));
  EXPECT_EQ(scheduled.engine().metrics().tokens_proposed, 0U);
  EXPECT_EQ(small.engine.pool->pages_free(), 3U);

  // One that takes 64 tokens has the last 32 to begin with, and begins again when it is full.
  const auto shorter = TestModel::make_small(1);
  shorter->config.positions_max = 64;
  DraftEngine draft(*shorter, 200);
  const Request longer = request(300, 200);
  Scheduled with_end(*model_, nullptr, 200, draft.options());
  const auto answered = with_end.add(longer);
  while (!answered->result) {
    with_end.engine().turn();
    ASSERT_LE(200U - draft.engine.pool->pages_free(), 64 / kBlock);
  }
  EXPECT_EQ(answered->tokens(), alone(longer));
  EXPECT_GT(with_end.engine().metrics().tokens_accepted, 0U);
  EXPECT_EQ(draft.engine.pool->pages_free(), 200U);
}

TEST_F(SpeculationTest, AnAnswerEndsWhereItWouldHaveInTheMiddleOfWhatIsProposed) {
  // Greedy answers of a model of random weights come to repeat themselves.
  const Request endless = request(30, 200, 6);
  const auto tokens = alone(endless);
  for (const std::uint32_t length : {100U, 101U, 102U, 103U, 150U}) {
    Request cut = endless;
    cut.tokens_max = length;
    Scheduled scheduled(*model_, nullptr, 32, kSpeculating);
    const auto collected = scheduled.add(cut);
    scheduled.run();
    EXPECT_EQ(collected->tokens(), std::vector(tokens.begin(), tokens.begin() + length));
    EXPECT_EQ(collected->reasons[0], FinishReason::tokens_max);
    EXPECT_GT(collected->result->usage.accepted_tokens, 0U);
  }
  // A stop token, the first of its kind, in a stretch that was right so far.
  Request stopped = endless;
  const auto first = [&](std::size_t at) {
    return std::find(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(at),
                     tokens[at]) == tokens.begin() + static_cast<std::ptrdiff_t>(at);
  };
  std::size_t at = 60;
  while (at > 0 && !first(at)) --at;
  stopped.stop_tokens = {tokens[at]};
  Scheduled scheduled(*model_, nullptr, 32, kSpeculating);
  const auto collected = scheduled.add(stopped);
  scheduled.run();
  EXPECT_EQ(collected->tokens(),
            std::vector(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(at)));
  EXPECT_EQ(collected->reasons[0], FinishReason::end_token);
}

TEST_F(SpeculationTest, NobodyIsParkedForProposalsAndWhoIsParkedComesBackTheSame) {
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 14, kSpeculating);
  std::uint64_t fed = 0;
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 4; ++i) {
    Request each = repeating(50 + 7 * i, 90, i);
    if (i % 2 == 1) each.sampling = {.temperature = 0.5, .seed = i};
    asked.emplace_back(each, scheduled.add(each));
    fed += each.prompt.size() + each.tokens_max - 1;
  }
  scheduled.run();
  const SchedulerMetrics metrics = scheduled.engine().metrics();
  EXPECT_GT(metrics.preemptions, 0U) << "the pool is too small for all";
  EXPECT_GT(metrics.tokens_accepted, 0U);
  EXPECT_EQ(metrics.tokens_recomputed, 0U);
  EXPECT_EQ(metrics.tokens_computed, fed) << "each token once";
  for (const auto& [each, collected] : asked) EXPECT_EQ(collected->tokens(), alone(each));
  // With all pages taken by one request that comes first, another one's proposals get none.
  EngineParts parts(*model_, 4, kSpeculating);
  parts.add(repeating(47, 10, 1));
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  parts.step();
  const auto page = parts.pool.acquire();
  ASSERT_TRUE(page);
  ASSERT_EQ(parts.pool.pages_free(), 0U);
  const auto inputs = parts.chooser.choose();
  ASSERT_EQ(inputs.size(), 1U);
  EXPECT_EQ(inputs[0].tokens, 1U) << "its next block begins behind this token";
  EXPECT_TRUE(inputs[0].fed.empty());
  parts.requests.cancel_all();
  parts.pool.release(*page);
}

TEST_F(SpeculationTest, BlocksInPlaceThatAreLostTakeProposalsWithThem) {
  FakeCache cache = make_cache();
  const Request each = repeating(100, 40, 9);
  fill(cache, each);
  cache.tier = Tier::device;
  for (std::uint32_t checks = 1; checks < 12; ++checks) {
    cache.checks_until_lost = checks;
    Scheduled scheduled(*model_, &cache, 32, kSpeculating);
    const auto collected = scheduled.add(each);
    scheduled.run();
    EXPECT_EQ(collected->tokens(), alone(each)) << checks;
  }
}

TEST_F(SpeculationTest, ProposalsLeaveRowsForPromptsAndAreSharedOut) {
  EngineParts parts(*model_, 64, kSpeculating);
  for (std::uint64_t i = 0; i < 4; ++i) parts.add(repeating(33, 40, 3));
  ASSERT_TRUE(parts.admission.admit());
  for (int i = 0; i < 8; ++i) parts.step();
  parts.add(request(200, 4));
  ASSERT_TRUE(parts.admission.admit());
  const auto inputs = parts.chooser.choose();
  ASSERT_EQ(inputs.size(), 5U);
  std::uint32_t rows = 0;
  for (std::size_t i = 0; i < 4; ++i) rows += inputs[i].tokens;
  EXPECT_LE(rows, 4 + kPartsStep / kProposedPart);
  EXPECT_EQ(inputs[4].tokens, kPartsStep - rows);
  parts.requests.cancel_all();
}

// ---- the distribution of what is sampled

// Sum of (seen - expected)^2 / expected, over tokens of which enough are expected.
double chi_square(std::span<const double> seen, std::span<const double> shares, double total,
                  int& freedom) {
  double sum = 0, rest_seen = total, rest = total;
  freedom = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double expected = shares[i] * total;
    if (expected < 8) continue;
    sum += (seen[i] - expected) * (seen[i] - expected) / expected;
    rest_seen -= seen[i];
    rest -= expected;
    ++freedom;
  }
  if (rest < 8) return --freedom, sum;
  return sum + (rest_seen - rest) * (rest_seen - rest) / rest;
}
// Exceeded once in some 30,000 times (four standard deviations, by Wilson and Hilferty).
double bound(int freedom) {
  const double part = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1 - part + 4 * std::sqrt(part), 3);
}

std::vector<double> softmax(std::span<const float> logits) {
  std::vector<double> shares(logits.begin(), logits.end());
  for (double& share : shares) share = std::exp(share);
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= total;
  return shares;
}

// Behind every token that may come first, after the prompt's last two, the prompt says `kProposed`.
TEST_F(SpeculationTest, SampledTokensHaveTheModelsDistributionAndTheNaiveRuleHasAnother) {
  constexpr Token kProposed = 16, kBefore[] = {2, 3};
  constexpr std::uint32_t kSamples = 100, kRequests = 60;
  const std::uint32_t vocab = model_->config.vocab_size;
  Request each;
  for (Token token = 0; token < vocab; ++token) {
    each.prompt.insert(each.prompt.end(), {kBefore[0], kBefore[1], token, kProposed});
  }
  each.prompt.insert(each.prompt.end(), std::begin(kBefore), std::end(kBefore));
  each.tokens_max = 3;
  each.samples = kSamples;
  each.ignore_end = true;

  // The second token's shares, over all that may be first; and what they would be if a proposal
  // that is not kept were followed by a draw from all tokens.
  const auto first = softmax(logits_of(*model_, kScheduledFormat, each.prompt, 64, 1));
  std::vector<double> right(vocab, 0), naive(vocab, 0);
  for (Token token = 0; token < vocab; ++token) {
    auto longer = each.prompt;
    longer.push_back(token);
    const auto second = softmax(logits_of(*model_, kScheduledFormat, longer, 64, 1));
    for (Token next = 0; next < vocab; ++next) {
      right[next] += first[token] * second[next];
      naive[next] += first[token] * (1 - second[kProposed]) * second[next];
    }
    naive[kProposed] += first[token] * second[kProposed];
  }

  ASSERT_GT(right[kProposed], 0.02) << "likely enough to tell the two apart";

  Scheduled scheduled(*model_, nullptr, 400, kSpeculating, 512);
  std::vector<std::shared_ptr<Collected>> asked;
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    each.sampling = {.temperature = 1, .seed = 1000 * i};
    asked.push_back(scheduled.add(each));
    scheduled.run();
  }
  std::vector<double> seen(vocab, 0);
  for (const auto& collected : asked) {
    for (std::size_t i = 0; i < kSamples; ++i) ++seen[collected->tokens(i).at(1)];
  }
  const double total = kSamples * kRequests;
  const SchedulerMetrics metrics = scheduled.engine().metrics();
  EXPECT_EQ(metrics.tokens_proposed, total) << "every second token was proposed";
  EXPECT_EQ(metrics.tokens_accepted, seen[kProposed]);
  int freedom = 0;
  const double as_right = chi_square(seen, right, total, freedom);
  EXPECT_LT(as_right, bound(freedom)) << freedom;

  SplitMix64 random(5);
  std::vector<double> seen_naively(vocab, 0);
  for (double i = 0; i < total; ++i) {
    double unit = random.next_unit();
    Token token = 0;
    while (token + 1 < vocab && unit >= naive[token]) unit -= naive[token++];
    ++seen_naively[token];
  }
  EXPECT_GT(chi_square(seen_naively, right, total, freedom), bound(freedom));
  RecordProperty("chi_square", std::to_string(as_right));
}

}  // namespace
}  // namespace kvtier::engine::test
