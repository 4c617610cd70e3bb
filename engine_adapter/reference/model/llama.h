// The forward pass of a Llama-like model on the CPU's kernel table. A row's result is bit-identical
// however rows are grouped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/latent_attention.h"
#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/step_blocks.h"
#include "engine_adapter/reference/model/weights/llama_weights.h"

namespace kvtier::engine {

class Llama : public Model {
 public:
  // `config`, `weights` and `kernels` outlive the model. A step has at most `rows_max` rows.
  Llama(const ModelConfig& config, const LlamaWeights& weights, const kernels::KernelTable& kernels,
        const RecordLayout& layout, std::uint32_t rows_max);

  Result<void> step(std::span<const StepInput> inputs, std::span<float> logits,
                    const LayerGate& gate = {}) override;
  Result<void> step_and_choose(std::span<const StepInput> inputs, std::span<const Choice> choices,
                               std::span<Token> tokens, const LayerGate& gate = {}) override;
  Result<void> step_and_tell(std::span<const StepInput> inputs,
                             std::span<const RowQuestion> questions, std::span<RowAnswer> answers,
                             const LayerGate& gate = {}) override;

  const ModelConfig& config() const noexcept override { return config_; }
  std::uint32_t rows_max() const noexcept override { return rows_max_; }

 private:
  // What a step computes of one block.
  struct Part {
    TouchedBlock touched;
    std::size_t entry;         // in exact_k_ and exact_v_
    std::uint32_t first_row;   // of the step
    float* page;               // K, then V, of layer 0
    std::size_t layer_stride;  // floats; 0 for a page that holds one layer at a time
  };

  void plan(std::span<const StepInput> inputs);
  void touch(const StepInput& input, std::uint32_t first_row, std::size_t first_entry);
  void append(const StepInput& input);
  void project(std::uint32_t layer, const LlamaLayer& weights);
  void attend(std::uint32_t layer, const LlamaLayer& weights, const LayerGate& gate);
  void point_at(std::uint32_t layer);
  void store_kv(std::uint32_t layer);
  void feed_forward(const LlamaLayer& weights);
  void project_logits(std::span<const StepInput> inputs, std::span<float> logits);
  void apply(const Linear& linear, const float* in, float* out, std::size_t n, std::size_t k);

  const ModelConfig& config_;
  const LlamaWeights& weights_;
  const kernels::KernelTable& kernels_;
  RecordLayout layout_;
  std::uint32_t rows_max_;
  std::size_t page_floats_;                 // K, and V where it is kept, of one block in one layer
  std::size_t scratch_layers_ = 1;          // of a page for whole blocks
  std::vector<float> inverse_frequencies_;  // none with latent attention
  std::optional<LatentAttention> latent_;

  // The step's plan.
  std::uint32_t rows_ = 0;
  std::size_t scratch_pages_used_ = 0;
  std::vector<Token> ids_;
  std::vector<std::uint32_t> positions_;
  std::vector<std::uint32_t> sink_positions_;  // as seen from the sinks
  std::vector<std::uint32_t> row_sequence_;
  std::vector<Part> parts_;
  std::vector<kernels::SequenceKv> sequences_;
  std::vector<const float*> exact_k_,
      exact_v_;  // of all blocks of the sequences, one after another
  std::vector<void*> completed_k_, completed_v_;
  std::vector<std::byte*> completed_records_;

  // Activations, [rows_max][...].
  std::vector<float> sink_q_;
  std::vector<float> hidden_, normed_, q_, k_, v_, attended_, projected_, gate_, up_;
  std::vector<float> values_;   // with latent attention: [rows_max][heads][v_dim]
  std::vector<float> scratch_;  // exact pages, for one layer, of the blocks that a step fills whole
  std::vector<float> logits_;   // to choose from
  std::vector<double> log_sums_;  // of their exponentials, a row
};

}  // namespace kvtier::engine
