// A language model as the engine sees it: steps over rows (tokens) of one or more sequences whose
// KV is paged. Llama computes on the CPU, CudaLlama on a GPU.
//
// Every implementation keeps the rule that a hit equals a miss: in each layer of a step the new K
// and V go to exact pages, the blocks they complete are quantised into their records, and attention
// reads every complete earlier block from its record and only the row's own block exactly. So
// results depend neither on how rows are grouped into steps nor on whether a block was computed or
// restored. Where a row's bits depend on how many rows are computed with it, this holds for rows of
// Stage::prompt, and for those of Stage::answer in steps of the same size.
//
// One thread; one step at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/sampler.h"
#include "engine_adapter/reference/model/sequence.h"
#include "engine_adapter/reference/model/weights/model_config.h"
#include "kvtier/client.h"

namespace kvtier::engine {

// What rows are to the cache.
enum class Stage : std::uint8_t {
  prompt,  // of blocks that may be restored instead: with the same bits however they are grouped
  answer,  // a prompt's last tokens, which are always computed, and what is chosen after them
};

struct StepInput {
  Sequence* sequence = nullptr;
  std::span<const Token> tokens;  // appended to the sequence; at least one
  std::uint32_t logit_rows = 0;   // how many of the last tokens' logits are wanted
  Stage stage = Stage::prompt;
};

// How the token after an input's last one is chosen.
struct Choice {
  SamplerOptions options;
  double unit = 0;  // the draw, where options.temperature is not 0
};

// What is asked about one row's logits.
struct RowQuestion {
  std::span<const Choice> choices{};  // tokens that are chosen from it, one each
  std::optional<Token> known{};       // one whose log probability is wanted
  bool logprobs = false;              // those of the chosen tokens are, too
  std::uint32_t likeliest = 0;        // so many tokens, at most kLikeliestMax
};
struct RowAnswer {
  std::vector<TokenLogprob> chosen;     // in the order of the choices
  float known = 0;                      // log probability
  std::vector<TokenLogprob> likeliest;  // likeliest first, the lower id among equals
};
inline constexpr std::uint32_t kLikeliestMax = 128;

// Called in each layer before its attention: has the work that follows wait for what the layer
// attends to.
using LayerGate = std::function<void(std::uint32_t layer)>;

class Model {
 public:
  virtual ~Model() = default;

  // Appends each input's tokens (below vocab_size) to its sequence. `logits`, in host memory, takes
  // [sum of logit_rows][vocab_size], in the order of the inputs; where none are wanted, the step
  // may still be computing when this returns. Errors: no_space (the page pool, or the
  // device's memory); the sequences are then good for nothing but to be let go.
  virtual Result<void> step(std::span<const StepInput> inputs, std::span<float> logits,
                            const LayerGate& gate = {}) = 0;

  // The same, and chooses the next token of every input whose logit_rows is 1; those of the others
  // are 0, and their choices and tokens mean nothing. At least one is chosen.
  virtual Result<void> step_and_choose(std::span<const StepInput> inputs,
                                       std::span<const Choice> choices, std::span<Token> tokens,
                                       const LayerGate& gate = {}) = 0;

  // The same, and answers one question about each row of logits, in the order of the inputs and of
  // their rows, where the logits are. At least one row is asked about.
  virtual Result<void> step_and_tell(std::span<const StepInput> inputs,
                                     std::span<const RowQuestion> questions,
                                     std::span<RowAnswer> answers, const LayerGate& gate = {}) = 0;

  // What the steps are ordered on.
  virtual StreamView stream() const noexcept { return {}; }
  // Returns once every step has been computed.
  virtual void wait() {}
  // Whether a step is still being computed. Does not wait.
  virtual bool computing() { return false; }
  // Whether steps can attend to records in the cache's device tier.
  virtual bool reads_device_tier() const noexcept { return false; }

  // Whether a row of Stage::answer, too, has the same bits however many rows a step has.
  virtual bool rows_are_independent() const noexcept { return true; }

  // Whether an answer has the same tokens whatever else is in the steps that compute it.
  virtual bool batch_invariant() const noexcept { return rows_are_independent(); }

  virtual const ModelConfig& config() const noexcept = 0;
  // The most rows of a step.
  virtual std::uint32_t rows_max() const noexcept = 0;
};

}  // namespace kvtier::engine
