// The forward pass of a Llama model on a kernel table, over rows (tokens) of one or more sequences
// whose KV is paged.
//
// It keeps the rule that a hit equals a miss: in each layer of a step the new K and V go to exact
// pages, the blocks they complete are quantised into their records, and attention reads every
// complete earlier block from its record and only the row's own block exactly. So results depend
// neither on how rows are grouped into steps nor on whether a block was computed or restored.
//
// The CPU backend only so far: the new rows are laid into pages by this thread. One step at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine_adapter/engine/llama_weights.h"
#include "engine_adapter/engine/sequence.h"

namespace kvtier::engine {

struct StepInput {
  Sequence* sequence = nullptr;
  std::span<const Token> tokens;  // appended to the sequence; at least one
  std::uint32_t logit_rows = 0;   // how many of the last tokens' logits are wanted
};

// Called in each layer before its attention: waits until what the layer attends to is there.
using LayerGate = std::function<void(std::uint32_t layer)>;

class Llama {
 public:
  // `config`, `weights` and `kernels` outlive the model. A step has at most `rows_max` rows.
  Llama(const ModelConfig& config, const LlamaWeights& weights, const kernels::KernelTable& kernels,
        const RecordLayout& layout, std::uint32_t rows_max);

  // Appends each input's tokens (below vocab_size) to its sequence. `logits` takes [sum of
  // logit_rows][vocab_size], in the order of the inputs. Errors: no_space (the page pool), before
  // anything has changed but what is reserved.
  Result<void> step(std::span<const StepInput> inputs, std::span<float> logits,
                    const LayerGate& gate = {});

  const ModelConfig& config() const noexcept { return config_; }
  std::uint32_t rows_max() const noexcept { return rows_max_; }

 private:
  // The part of one block that a step computes.
  struct TouchedBlock {
    Sequence* sequence;
    std::uint32_t block;
    std::uint32_t first_row;    // of the step
    std::uint32_t first_token;  // place of that row in the block
    std::uint32_t tokens;
    bool completed;
    ExactBlock* open;  // where the block is open before or after the step
    float* scratch_k;  // else: a page for one layer at a time
    float* scratch_v;

    float* k(std::uint32_t layer) const { return open != nullptr ? open->k(layer) : scratch_k; }
    float* v(std::uint32_t layer) const { return open != nullptr ? open->v(layer) : scratch_v; }
  };

  void plan(std::span<const StepInput> inputs);
  void touch(const StepInput& input, std::uint32_t first_row);
  void attend(std::uint32_t layer, const LlamaLayer& weights, const LayerGate& gate);
  void store_kv(std::uint32_t layer);
  void feed_forward(const LlamaLayer& weights);
  void project_logits(std::span<const StepInput> inputs, std::span<float> logits);
  void apply(const Linear& linear, const float* in, float* out, std::size_t n, std::size_t k);

  const ModelConfig& config_;
  const LlamaWeights& weights_;
  const kernels::KernelTable& kernels_;
  RecordLayout layout_;
  std::uint32_t rows_max_;
  std::vector<float> inverse_frequencies_;

  // The step's plan.
  std::uint32_t rows_ = 0;
  std::size_t scratch_pages_used_ = 0;
  std::vector<Token> ids_;
  std::vector<std::uint32_t> positions_;
  std::vector<std::uint32_t> row_sequence_;
  std::vector<TouchedBlock> touched_;
  std::vector<kernels::SequenceKv> sequences_;
  std::vector<void*> completed_k_, completed_v_;
  std::vector<std::byte*> completed_records_;

  // Activations, [rows_max][...].
  std::vector<float> hidden_, normed_, q_, k_, v_, attended_, projected_, gate_, up_;
  std::vector<float> scratch_k_, scratch_v_;  // exact pages of the blocks that one step fills whole
};

}  // namespace kvtier::engine
