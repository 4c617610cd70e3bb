// What kvtier-serve-bench asks of an engine: sessions of one or more turns, all drawn from a seed.
//
//   shared_prompt  a system prompt that many requests share, then a question
//   chat           a system prompt and several turns; each prompt is the whole conversation so far
//   document_qa    a document of a library, then a short question. It never fills a block: asked
//                  again, it finds no more than its document
//
// Arrivals are open: sessions come as a Poisson process, whether or not others have been answered;
// within a session the next turn comes an exponential think time after the answer. Lengths are
// log-uniform. The same kind, shape, vocabulary and seed give the same workload; Workload::digest()
// tells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvtier/key.h"

namespace kvtier::bench {

enum class WorkloadKind : std::uint8_t { shared_prompt, chat, document_qa };
inline constexpr WorkloadKind kWorkloadKinds[] = {WorkloadKind::shared_prompt, WorkloadKind::chat,
                                                  WorkloadKind::document_qa};
const char* name(WorkloadKind kind) noexcept;

// Of the prompts: tiny for a test, small for the bundled model, large for one of 8B on a GPU.
enum class WorkloadSize : std::uint8_t { tiny, small, large };

struct CountRange {
  std::uint32_t min = 1, max = 1;
};

struct WorkloadShape {
  std::uint32_t sessions = 1;
  std::uint32_t prefixes = 1;  // system prompts or documents; each session draws one
  CountRange prefix_tokens;    // rounded down to whole blocks
  CountRange turns;
  CountRange question_tokens;  // of each turn
  CountRange answer_tokens;    // likewise; the answer has exactly so many
  double think_s = 0;          // in the mean
};
WorkloadShape shape_of(WorkloadKind kind, WorkloadSize size);

struct Turn {
  std::vector<Token> question;
  std::uint32_t answer_tokens = 1;
  double think_s = 0;  // after the answer before it
};

struct Session {
  double arrival = 0;  // at a mean rate of one request (turn) per unit of time
  std::uint32_t prefix = 0;
  std::vector<Turn> turns;
};

struct Workload {
  WorkloadKind kind = WorkloadKind::shared_prompt;
  std::uint64_t seed = 0;
  std::vector<std::vector<Token>> prefixes;
  std::vector<Session> sessions;  // by arrival

  // `shape` has no range that begins at 0 or ends before it begins. Tokens are below `vocabulary`.
  static Workload make(WorkloadKind kind, const WorkloadShape& shape, std::uint32_t vocabulary,
                       std::uint64_t seed);

  // Turns of the first `sessions` sessions.
  std::size_t requests(std::size_t sessions) const;
  // Of the longest prompt with its answer.
  std::size_t tokens_most() const;
  // Differs where anything in the workload does.
  std::uint64_t digest() const;
  // One line: kind, seed, counts, lengths and digest.
  std::string describe() const;
};

}  // namespace kvtier::bench
