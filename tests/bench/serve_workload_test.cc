#include "bench/serve/serve_workload.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bench/support/records.h"

namespace kvtier::bench {
namespace {

constexpr std::uint32_t kVocabulary = 2048;

Workload drawn(WorkloadKind kind, std::uint64_t seed, WorkloadSize size = WorkloadSize::small) {
  return Workload::make(kind, shape_of(kind, size), kVocabulary, seed);
}

// Of many sessions of one short turn.
Workload many_sessions(std::uint32_t sessions, CountRange question) {
  WorkloadShape shape;
  shape.sessions = sessions;
  shape.prefix_tokens = {kBlockTokens, kBlockTokens};
  shape.question_tokens = question;
  return Workload::make(WorkloadKind::shared_prompt, shape, kVocabulary, 7);
}

TEST(ServeWorkload, is_the_same_for_the_same_seed_and_another_for_another_one) {
  for (const WorkloadKind kind : kWorkloadKinds) {
    const Workload one = drawn(kind, 1);
    const Workload again = drawn(kind, 1);
    EXPECT_EQ(one.digest(), again.digest()) << name(kind);
    EXPECT_EQ(one.prefixes, again.prefixes) << name(kind);
    EXPECT_EQ(one.describe(), again.describe()) << name(kind);
    const Workload other = drawn(kind, 2);
    EXPECT_NE(one.digest(), other.digest()) << name(kind);
    EXPECT_NE(one.prefixes, other.prefixes) << name(kind);
    EXPECT_NE(one.sessions.front().turns.front().question,
              other.sessions.front().turns.front().question);
  }
}

TEST(ServeWorkload, has_another_digest_when_one_token_differs) {
  Workload workload = drawn(WorkloadKind::chat, 1);
  const std::uint64_t before = workload.digest();
  workload.sessions.back().turns.back().question.back() ^= 1;
  EXPECT_NE(workload.digest(), before);
}

TEST(ServeWorkload, keeps_to_its_shape) {
  for (const WorkloadKind kind : kWorkloadKinds) {
    for (const auto size : {WorkloadSize::tiny, WorkloadSize::small, WorkloadSize::large}) {
      const WorkloadShape shape = shape_of(kind, size);
      const Workload workload = drawn(kind, 3, size);
      ASSERT_EQ(workload.sessions.size(), shape.sessions);
      ASSERT_EQ(workload.prefixes.size(), shape.prefixes);
      const auto within = [](std::size_t count, CountRange range) {
        return count >= range.min && count <= range.max;
      };
      for (const auto& prefix : workload.prefixes) {
        EXPECT_TRUE(within(prefix.size(), shape.prefix_tokens)) << prefix.size();
        EXPECT_EQ(prefix.size() % kBlockTokens, 0U);
      }
      for (const Session& session : workload.sessions) {
        EXPECT_LT(session.prefix, shape.prefixes);
        EXPECT_TRUE(within(session.turns.size(), shape.turns));
        for (const Turn& turn : session.turns) {
          EXPECT_TRUE(within(turn.question.size(), shape.question_tokens));
          EXPECT_TRUE(within(turn.answer_tokens, shape.answer_tokens));
          for (const Token token : turn.question) EXPECT_LT(token, kVocabulary);
        }
      }
    }
  }
}

TEST(ServeWorkload, asks_about_documents_with_less_than_a_block) {
  for (const auto size : {WorkloadSize::tiny, WorkloadSize::small, WorkloadSize::large}) {
    EXPECT_LT(shape_of(WorkloadKind::document_qa, size).question_tokens.max, kBlockTokens);
  }
}

TEST(ServeWorkload, comes_at_a_mean_rate_of_one_request) {
  // Of 20,000 exponential gaps the mean is within 5 % of theirs, seven standard deviations.
  const Workload workload = many_sessions(20'000, {1, 1});
  EXPECT_NEAR(workload.sessions.back().arrival / 20'000, 1, 0.05);
  const Workload chat = drawn(WorkloadKind::chat, 1);
  const auto requests = static_cast<double>(chat.requests(chat.sessions.size()));
  // 24 gaps: within three standard deviations.
  EXPECT_NEAR(chat.sessions.back().arrival / requests, 1, 0.6);
}

TEST(ServeWorkload, comes_as_a_poisson_process) {
  const Workload workload = many_sessions(20'000, {1, 1});
  double sum = 0;
  double squares = 0;
  double before = 0;
  for (const Session& session : workload.sessions) {
    const double gap = session.arrival - before;
    ASSERT_GE(gap, 0);
    before = session.arrival;
    sum += gap;
    squares += gap * gap;
  }
  // Of an exponential distribution the standard deviation is the mean.
  const double mean = sum / 20'000;
  EXPECT_NEAR(std::sqrt(squares / 20'000 - mean * mean) / mean, 1, 0.05);
}

TEST(ServeWorkload, draws_lengths_log_uniformly) {
  const Workload workload = many_sessions(20'000, {10, 1000});
  std::size_t below = 0;
  for (const Session& session : workload.sessions) {
    if (session.turns.front().question.size() < 100) ++below;
  }
  EXPECT_NEAR(static_cast<double>(below) / 20'000, 0.5, 0.02);
}

TEST(ServeWorkload, counts_the_longest_conversation_with_its_answers) {
  Workload workload;
  workload.prefixes = {std::vector<Token>(32)};
  workload.sessions.resize(2);
  workload.sessions[0].turns = {{std::vector<Token>(5), 3, 0}};
  workload.sessions[1].turns = {{std::vector<Token>(5), 3, 0}, {std::vector<Token>(7), 2, 0}};
  EXPECT_EQ(workload.tokens_most(), 32U + 5 + 3 + 7 + 2);
  EXPECT_EQ(workload.requests(1), 1U);
  EXPECT_EQ(workload.requests(2), 3U);
}

}  // namespace
}  // namespace kvtier::bench
