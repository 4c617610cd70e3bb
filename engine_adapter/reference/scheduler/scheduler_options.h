#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "kvtier/result.h"

namespace kvtier::engine {

class Model;
class PagePool;

// What decides about the cached part of a prompt.
enum class LoadPolicy : std::uint8_t {
  automatic,  // the cost model
  always_load,
  always_compute,
  always_both,
};

// Tokens of an answer are proposed and computed in one step; those that the model chooses itself
// are kept. So answers are what they are without, and the fewer steps the more was right.
struct SpeculationOptions {
  std::uint32_t proposals_max = 0;  // for an answer in a step; 0: nothing is proposed
  // What a model of the same tokens would choose is proposed; else what followed the last tokens
  // where they came before in prompt and answer. Both outlive the scheduler, whose thread alone
  // uses them.
  bool by_draft = false;
  Model* draft = nullptr;
  PagePool* draft_pool = nullptr;

  // "ngram" or "draft", or with ":N" behind it, N being the tokens proposed (1 to kProposalsMax;
  // kProposalsUsual where it is left out); nothing: the default. Errors: invalid, with what may be
  // said.
  static Result<SpeculationOptions> parse(const std::string& text);
};

// How requests came by memory and turns before pages and continuous batches, to measure those
// beside (kvtier-serve-bench --batching). Answers are the same.
struct EarlierWays {
  // Not 0: every request has memory of its own for so many tokens from its first to its last,
  // whatever it needs; none goes in before there is as much.
  std::uint32_t reserved_tokens = 0;
  // No request uses pages of another that begins alike.
  bool apart = false;
  // Nobody goes in before all have ended who went in together.
  bool fixed_batches = false;
};

struct SchedulerOptions {
  // Rows of a step: one for each answer under way, then prompts' chunks. 0: the model's rows_max().
  std::uint32_t step_tokens = 0;
  // Of a step with rows of prompts and of answers, which wait for them all; a quarter is the
  // prompts' however many answers there are. Of prompts alone: step_tokens. 0: no bound.
  std::uint32_t tokens_beside_answers = 1024;
  // Requests that wait for pages; submit() refuses more.
  std::uint32_t waiting_max = 1024;
  // Requests with pages at once, a request of n answers being n, and one of n beams 2 n. One that
  // is more than this runs alone.
  std::uint32_t running_max = 256;
  // Pages that no request uses are kept for later ones with the same prefix, until others need
  // them.
  bool keep_pages = true;
  LoadPolicy load_policy = LoadPolicy::automatic;
  // Hears what an operator should know, a line at a time, on the scheduler's thread; may be null.
  std::function<void(const std::string&)> tell{};
  SpeculationOptions speculation{};
  EarlierWays earlier{};

  // Of a step of a model that takes `rows_max`.
  std::uint32_t step_rows(std::uint32_t rows_max) const noexcept {
    return step_tokens != 0 ? std::min(step_tokens, rows_max) : rows_max;
  }
  // Errors: invalid, naming the option.
  Result<void> validate() const;
};

}  // namespace kvtier::engine
