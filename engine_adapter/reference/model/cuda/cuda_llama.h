// The forward pass of a Llama-like model on one GPU: BF16 products, an FP32 residual. Everything is
// queued on one stream; only what the steps return is waited for.
//
// A step of one token an input (decoding) is replayed as a CUDA graph, one for each padded number
// of rows and power of two of context, with the choice of tokens and without.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "engine_adapter/reference/model/cuda/cuda_latent.h"
#include "engine_adapter/reference/model/cuda/cuda_plan.h"
#include "engine_adapter/reference/model/cuda/cuda_products.h"
#include "engine_adapter/reference/model/cuda/cuda_teller.h"
#include "engine_adapter/reference/model/cuda/cuda_weights.h"
#include "engine_adapter/reference/model/model.h"
#include "kernels/cuda/stream.h"

namespace kvtier::engine::cuda {

struct CudaLlamaOptions {
  std::uint32_t device = 0;
  std::uint32_t rows_max = 0;  // of a step
  // An input of Stage::answer with at most so many rows attends to records in place; others have
  // their prefix dequantised once a layer.
  std::uint32_t tail_rows_max = 64;
  bool graphs = true;
  // A row's bits do not depend on which other rows a step has: products take one algorithm for rows
  // of prompts and one for those of answers, whatever their number.
  bool batch_invariant = false;
};

class CudaLlama : public Model {
 public:
  // `config` outlives the model; `weights` need not. Errors: invalid (a shape the kernels have no
  // code for), unavailable (the device), no_space.
  static Result<std::unique_ptr<CudaLlama>> make(const ModelConfig& config,
                                                 const LlamaWeights& weights,
                                                 const RecordLayout& layout,
                                                 const CudaLlamaOptions& options);
  ~CudaLlama() override;

  Result<void> step(std::span<const StepInput> inputs, std::span<float> logits,
                    const LayerGate& gate = {}) override;
  Result<void> step_and_choose(std::span<const StepInput> inputs, std::span<const Choice> choices,
                               std::span<Token> tokens, const LayerGate& gate = {}) override;
  Result<void> step_and_tell(std::span<const StepInput> inputs,
                             std::span<const RowQuestion> questions, std::span<RowAnswer> answers,
                             const LayerGate& gate = {}) override;

  StreamView stream() const noexcept override { return stream_.view(); }
  void wait() override;
  bool computing() override;
  bool reads_device_tier() const noexcept override { return true; }
  bool rows_are_independent() const noexcept override { return false; }
  bool batch_invariant() const noexcept override { return options_.batch_invariant; }
  const ModelConfig& config() const noexcept override { return config_; }
  std::uint32_t rows_max() const noexcept override { return options_.rows_max; }

 private:
  // Padded rows, context, whether it chooses tokens.
  using GraphKey = std::tuple<std::uint32_t, std::uint32_t, bool>;
  struct Activations;

  CudaLlama(const ModelConfig& config, const RecordLayout& layout, const CudaLlamaOptions& options,
            CudaWeights weights);
  template <class Step>
  Result<void> unless_full(const Step& step);
  Result<void> step_for_logits(std::span<const StepInput> inputs, std::span<float> logits,
                               const LayerGate& gate);
  Result<void> step_for_tokens(std::span<const StepInput> inputs, std::span<const Choice> choices,
                               std::span<Token> tokens, const LayerGate& gate);
  Result<void> step_for_answers(std::span<const StepInput> inputs,
                                std::span<const RowQuestion> questions,
                                std::span<RowAnswer> answers, const LayerGate& gate);
  PlanShape plan_shape();
  Result<const CudaPlan*> plan(std::span<const StepInput> inputs, std::span<const Choice> choices,
                               std::uint32_t padded_rows);
  void make_room(const CudaPlan& plan, bool choosing);
  void make_attention_room(const CudaPlan& plan, const kernels::cuda::Sight& sight);
  template <class T>
  void grow(DeviceArray<T>& array, std::size_t count);
  std::uint32_t padded_rows(std::span<const StepInput> inputs, const LayerGate& gate) const;
  void compute(const CudaPlan& plan, std::uint32_t padded_rows, const LayerGate& gate);
  void forward(const CudaPlan& plan, const LayerGate& gate);
  void replay(const CudaPlan& plan, std::uint32_t padded_rows);
  void project_qkv(std::uint32_t layer, const CudaPlan& plan);
  void quantise(std::uint32_t layer, const CudaPlan& plan);
  // To what the output projection takes.
  const Bf16* attend(std::uint32_t layer, const CudaPlan& plan);
  void attend_alone(std::uint32_t layer, const CudaPlan& plan);
  void attend_tail(std::uint32_t layer, const CudaPlan& plan, const PrefillPiece& piece);
  void attend_piece(std::uint32_t layer, const CudaPlan& plan, const PrefillPiece& piece);
  // Whether rows that see so much attend to records in place.
  bool is_tail(const PrefillPiece& piece, const kernels::cuda::Sight& sight) const noexcept {
    return sight.window == 0 && piece.stage == Stage::answer &&
           piece.rows <= options_.tail_rows_max;
  }
  // Of rows from `first_row` on in a layer.
  kernels::cuda::Sight sight(std::uint32_t layer, std::uint32_t first_row) const noexcept;
  float attention_scale() const noexcept;
  void feed_forward(const CudaPlan& plan, const CudaLayer& layer);
  void project_logits(const CudaPlan& plan);
  void drop_graphs() noexcept;

  const ModelConfig& config_;
  RecordLayout layout_;
  CudaLlamaOptions options_;
  CudaWeights weights_;
  kernels::cuda::Stream stream_;
  CudaProducts products_;
  std::optional<CudaLatent> latent_;
  DeviceArray<float> inverse_frequencies_;
  std::set<std::uint32_t> windows_;  // of the layers; 0: all that is earlier
  std::unique_ptr<Activations> activations_;
  std::unique_ptr<Planner> planner_;

  // Of sizes that depend on the steps: made larger as they are needed.
  DeviceArray<std::byte> attention_workspace_, sample_workspace_;
  DeviceArray<Bf16> stored_k_, stored_v_;  // of one piece in one layer
  DeviceArray<float> logits_;
  DeviceArray<std::uint32_t> tokens_;
  Token* tokens_host_ = nullptr;  // pinned
  Teller teller_;

  std::map<GraphKey, cudaGraphExec_t> graphs_;
  std::set<std::uint32_t> rows_seen_;  // padded, whose products have their algorithms
};

}  // namespace kvtier::engine::cuda
