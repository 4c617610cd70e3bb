#include "bench/serve/serve_workload.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include "bench/support/records.h"
#include "core/base/check.h"
#include "engine_adapter/reference/model/sampler.h"

namespace kvtier::bench {
namespace {

using engine::SplitMix64;

std::uint32_t draw(SplitMix64& random, CountRange range) {
  const double low = std::log(static_cast<double>(range.min));
  const double high = std::log(static_cast<double>(range.max) + 1);
  const double drawn = std::exp(low + random.next_unit() * (high - low));
  return std::clamp(static_cast<std::uint32_t>(drawn), range.min, range.max);
}

double draw_gap(SplitMix64& random, double mean) {
  return -mean * std::log1p(-random.next_unit());
}

std::vector<Token> draw_tokens(SplitMix64& random, std::uint32_t count, std::uint32_t vocabulary) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.next() % vocabulary);
  return tokens;
}

bool is_good(CountRange range) {
  return range.min > 0 && range.min <= range.max;
}

}  // namespace

const char* name(WorkloadKind kind) noexcept {
  switch (kind) {
    case WorkloadKind::shared_prompt:
      return "shared_prompt";
    case WorkloadKind::chat:
      return "chat";
    case WorkloadKind::document_qa:
      return "document_qa";
  }
  return "?";
}

WorkloadShape shape_of(WorkloadKind kind, WorkloadSize size) {
  constexpr CountRange kOne{1, 1};
  constexpr CountRange kUnderABlock{8, kBlockTokens - 1};
  // By kind, then by size. Sessions, prefixes, prefix_tokens, turns, question, answer, think_s.
  static const WorkloadShape kShapes[3][3] = {
      {{6, 2, {128, 256}, kOne, {16, 48}, {2, 4}, 0},
       {64, 4, {1024, 2048}, kOne, {16, 128}, {8, 32}, 0},
       {160, 8, {2048, 4096}, kOne, {32, 512}, {32, 128}, 0}},
      {{3, 1, {64, 64}, {2, 3}, {16, 48}, {2, 8}, 0.01},
       {24, 1, {256, 256}, {2, 6}, {32, 128}, {16, 48}, 0.5},
       {96, 1, {512, 512}, {2, 6}, {64, 512}, {48, 128}, 0.5}},
      {{8, 2, {256, 512}, kOne, kUnderABlock, {2, 4}, 0},
       {320, 12, {512, 2048}, kOne, kUnderABlock, {8, 16}, 0},
       {640, 24, {8192, 32000}, kOne, kUnderABlock, {8, 24}, 0}}};
  return kShapes[static_cast<std::size_t>(kind)][static_cast<std::size_t>(size)];
}

Workload Workload::make(WorkloadKind kind, const WorkloadShape& shape, std::uint32_t vocabulary,
                        std::uint64_t seed) {
  KVTIER_CHECK(shape.prefixes > 0 && shape.sessions > 0 && vocabulary > 0);
  KVTIER_CHECK(is_good(shape.prefix_tokens) && shape.prefix_tokens.min >= kBlockTokens);
  KVTIER_CHECK(is_good(shape.turns) && is_good(shape.question_tokens) &&
               is_good(shape.answer_tokens));
  Workload made{kind, seed, {}, {}};
  SplitMix64 random(mixed(seed * 4 + static_cast<std::uint64_t>(kind)));
  for (std::uint32_t i = 0; i < shape.prefixes; ++i) {
    const std::uint32_t tokens = draw(random, shape.prefix_tokens);
    made.prefixes.push_back(draw_tokens(random, tokens / kBlockTokens * kBlockTokens, vocabulary));
  }
  double at = 0;
  for (std::uint32_t i = 0; i < shape.sessions; ++i) {
    Session session;
    session.prefix = static_cast<std::uint32_t>(random.next() % shape.prefixes);
    const std::uint32_t turns = draw(random, shape.turns);
    for (std::uint32_t turn = 0; turn < turns; ++turn) {
      Turn next;
      next.question = draw_tokens(random, draw(random, shape.question_tokens), vocabulary);
      next.answer_tokens = draw(random, shape.answer_tokens);
      if (turn > 0) next.think_s = draw_gap(random, shape.think_s);
      session.turns.push_back(std::move(next));
    }
    at += draw_gap(random, 1);
    session.arrival = at;
    made.sessions.push_back(std::move(session));
  }
  // A session brings as many requests as it has turns.
  const double mean_turns =
      static_cast<double>(made.requests(made.sessions.size())) / shape.sessions;
  for (Session& session : made.sessions) session.arrival *= mean_turns;
  return made;
}

std::size_t Workload::requests(std::size_t first) const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(first, sessions.size()); ++i)
    count += sessions[i].turns.size();
  return count;
}

std::size_t Workload::tokens_most() const {
  std::size_t most = 0;
  for (const Session& session : sessions) {
    std::size_t tokens = prefixes[session.prefix].size();
    for (const Turn& turn : session.turns) tokens += turn.question.size() + turn.answer_tokens;
    most = std::max(most, tokens);
  }
  return most;
}

std::uint64_t Workload::digest() const {
  std::uint64_t sum = mixed(seed);
  const auto add = [&sum](std::uint64_t number) { sum = mixed(sum ^ number); };
  const auto add_all = [&add](const std::vector<Token>& tokens) {
    add(tokens.size());
    for (const Token token : tokens) add(token);
  };
  for (const auto& prefix : prefixes) add_all(prefix);
  for (const Session& session : sessions) {
    add(std::bit_cast<std::uint64_t>(session.arrival));
    add(session.prefix);
    for (const Turn& turn : session.turns) {
      add_all(turn.question);
      add(turn.answer_tokens);
      add(std::bit_cast<std::uint64_t>(turn.think_s));
    }
  }
  return sum;
}

std::string Workload::describe() const {
  std::size_t prefix_tokens = 0;
  std::size_t prefix_min = std::numeric_limits<std::size_t>::max();
  std::size_t prefix_max = 0;
  for (const auto& prefix : prefixes) {
    prefix_tokens += prefix.size();
    prefix_min = std::min(prefix_min, prefix.size());
    prefix_max = std::max(prefix_max, prefix.size());
  }
  std::size_t questions = 0;
  std::size_t answers = 0;
  for (const Session& session : sessions) {
    for (const Turn& turn : session.turns) {
      questions += turn.question.size();
      answers += turn.answer_tokens;
    }
  }
  const std::size_t count = requests(sessions.size());
  char line[320];
  std::snprintf(line, sizeof line,
                "%s: seed %llu, digest %016llx; %zu sessions, %zu requests; %zu prefixes of %zu to "
                "%zu tokens, together %zu; in the mean %.1f tokens asked and %.1f answered",
                name(kind), static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(digest()), sessions.size(), count, prefixes.size(),
                prefix_min, prefix_max, prefix_tokens,
                static_cast<double>(questions) / static_cast<double>(count),
                static_cast<double>(answers) / static_cast<double>(count));
  return line;
}

}  // namespace kvtier::bench
