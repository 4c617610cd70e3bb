#include "engine_adapter/reference/model/cuda/cuda_llama.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "core/base/check.h"
#include "engine_adapter/reference/model/cuda/cuda_memory.h"
#include "engine_adapter/reference/model/cuda/cuda_support.h"
#include "kernels/table.h"

namespace kvtier::engine::cuda {
namespace {

namespace kc = kernels::cuda;

// Of a step that is replayed as a graph.
constexpr std::uint32_t kPaddedRowsMax = 256;
// Of a step that chooses tokens.
constexpr std::uint32_t kChoicesMax = 1024;

// Of a page for whole blocks: more than one at a time where layers attend to what earlier ones
// made.
std::uint32_t scratch_layers_of(const ModelConfig& config) {
  return config.looks_back() ? config.kept_layers() : 1;
}

}  // namespace

// [rows_max][...] each, and what a step's own pages and padding need.
struct CudaLlama::Activations {
  Activations(const ModelConfig& config, const RecordLayout& layout, std::size_t rows,
              std::size_t page_elements)
      : residual(rows * config.hidden_size),
        normed(rows * config.hidden_size),
        qkv(config.latent
                ? 0
                : rows * (config.heads + 2 * std::size_t{config.kv_heads}) * config.head_dim),
        q(rows * config.heads * config.head_dim),
        sink_q(config.sinks != 0 ? rows * config.heads * config.head_dim : 0),
        attended(rows * config.heads * config.head_dim),
        projected(rows * config.hidden_size),
        gate_up(rows * 2 * config.intermediate_size),
        inner(rows * config.intermediate_size),
        scratch(std::max<std::size_t>(rows / layout.block_tokens, 1) * page_elements *
                scratch_layers_of(config)),
        spare(kPaddedRowsMax * header_bytes(layout)) {
    // Never read before they are written, but for the rows that pad a batch.
    attended.fill_bytes(0);
    scratch.fill_bytes(0);
  }

  DeviceArray<float> residual;
  DeviceArray<Bf16> normed, qkv, q, sink_q, attended, projected, gate_up, inner, scratch;
  DeviceArray<std::byte> spare;
};

Result<std::unique_ptr<CudaLlama>> CudaLlama::make(const ModelConfig& config,
                                                   const LlamaWeights& weights,
                                                   const RecordLayout& layout,
                                                   const CudaLlamaOptions& options) {
  KVTIER_CHECK(options.rows_max > 0 && layout.block_tokens == kc::kTileTokens);
  if (auto fits = check_shape(config, layout); !fits) return fits.error();
  if (auto there = check_device(options.device); !there) return there.error();
  try {
    use_device(options.device);
    return std::unique_ptr<CudaLlama>(
        new CudaLlama(config, layout, options, CudaWeights::make(weights, config)));
  } catch (const kc::CudaError& error) {
    if (error.code() != cudaErrorMemoryAllocation) throw;
    (void)cudaGetLastError();
    return make_error(Errc::no_space, "the model does not fit into the memory of GPU " +
                                          std::to_string(options.device) + ": " + error.what());
  }
}

CudaLlama::CudaLlama(const ModelConfig& config, const RecordLayout& layout,
                     const CudaLlamaOptions& options, CudaWeights weights)
    : config_(config),
      layout_(layout),
      options_(options),
      weights_(std::move(weights)),
      products_(options.batch_invariant),
      inverse_frequencies_(config.latent
                               ? std::vector<float>{}
                               : kernels::rope_inverse_frequencies(
                                     config.head_dim, config.rope_theta, config.rope_scaling)),
      windows_(config.windows.begin(), config.windows.end()),
      tokens_(kChoicesMax) {
  if (windows_.empty()) windows_.insert(0);
  const std::uint32_t rows = std::max(options.rows_max, kPaddedRowsMax);
  if (config.latent) latent_.emplace(config, layout, rows);
  const PlanShape shape = plan_shape();
  activations_ = std::make_unique<Activations>(config, layout, rows, shape.page_elements);
  planner_ = std::make_unique<Planner>(plan_shape());
  void* at = nullptr;
  kc::check(cudaMallocHost(&at, kChoicesMax * sizeof(Token)), "cudaMallocHost");
  tokens_host_ = static_cast<Token*>(at);
  stream_ = kc::Stream(kc::Stream::Priority::normal);
}

CudaLlama::~CudaLlama() {
  cudaStreamSynchronize(stream_.get());
  drop_graphs();
  cudaFreeHost(tokens_host_);
}

PlanShape CudaLlama::plan_shape() {
  PlanShape shape{.layout = layout_,
                  .page_elements = std::size_t{config_.kv_heads} * layout_.block_tokens *
                                   (config_.head_dim + config_.head_dim_v()),
                  .scratch_layers = scratch_layers_of(config_)};
  if (activations_) {
    shape.scratch = activations_->scratch.get();
    shape.spare = activations_->spare.get();
  }
  return shape;
}

void CudaLlama::wait() {
  kc::check(cudaStreamSynchronize(stream_.get()), "a step");
}

bool CudaLlama::computing() {
  const cudaError_t state = cudaStreamQuery(stream_.get());
  if (state == cudaErrorNotReady) return true;
  kc::check(state, "a step");
  return false;
}

void CudaLlama::drop_graphs() noexcept {
  for (const auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

template <class T>
void CudaLlama::grow(DeviceArray<T>& array, std::size_t count) {
  if (count <= array.size()) return;
  wait();
  drop_graphs();  // they have the old place
  array = {};
  array = DeviceArray<T>(count + count / 4);
}

void CudaLlama::make_attention_room(const CudaPlan& plan, const kc::Sight& sight) {
  if (plan.alone_rows != 0) {
    grow(attention_workspace_, kc::decode_workspace_bytes(layout_, plan.alone_rows, config_.heads,
                                                          plan.context_max, sight));
  }
  for (const PrefillPiece& piece : plan.pieces) {
    if (is_tail(piece, sight)) {
      grow(attention_workspace_,
           kc::tail_workspace_bytes(layout_, config_.heads, piece.start, piece.rows));
      continue;
    }
    const kc::StoredSpan span = kc::StoredSpan::of(sight, piece.start, piece.rows);
    const std::size_t elements =
        std::size_t{span.blocks()} * kc::kTileTokens * config_.kv_heads * config_.head_dim;
    grow(stored_k_, elements);
    grow(stored_v_, elements);
  }
}

void CudaLlama::make_room(const CudaPlan& plan, bool choosing) {
  if (planner_->moved()) drop_graphs();
  if (latent_) grow(attention_workspace_, latent_->workspace_bytes(plan));
  for (const std::uint32_t window : windows_) {
    if (!latent_) make_attention_room(plan, {.window = window, .sinks = config_.sinks});
  }
  grow(logits_, std::size_t{plan.logit_rows} * config_.vocab_size);
  if (choosing) {
    grow(sample_workspace_, kc::sample_workspace_bytes(plan.logit_rows, config_.vocab_size));
  }
}

Result<const CudaPlan*> CudaLlama::plan(std::span<const StepInput> inputs,
                                        std::span<const Choice> choices,
                                        std::uint32_t padded_rows) {
  use_device(options_.device);
  std::size_t rows = 0;
  for (const StepInput& input : inputs) {
    KVTIER_CHECK(!input.tokens.empty() && input.logit_rows <= input.tokens.size());
    for (const Token token : input.tokens) KVTIER_CHECK(token < config_.vocab_size);
    rows += input.tokens.size();
    const auto reserved = input.sequence->reserve(input.sequence->length() +
                                                  static_cast<std::uint32_t>(input.tokens.size()));
    if (!reserved) return reserved.error();
  }
  KVTIER_CHECK(rows > 0 && rows <= options_.rows_max);
  const CudaPlan& plan = planner_->plan(inputs, choices, padded_rows);
  make_room(plan, !choices.empty());
  planner_->send(stream());
  return &plan;
}

// Memory that was missing is all that a step comes back from; what it launched meanwhile ends
// first.
template <class Step>
Result<void> CudaLlama::unless_full(const Step& step) try {
  return step();
} catch (const kc::CudaError& error) {
  if (error.code() != cudaErrorMemoryAllocation) throw;
  (void)cudaGetLastError();  // it is told here, and not held against the next call
  wait();
  return make_error(Errc::no_space,
                    "a step on GPU " + std::to_string(options_.device) + ": " + error.what());
}

Result<void> CudaLlama::step(std::span<const StepInput> inputs, std::span<float> logits,
                             const LayerGate& gate) {
  return unless_full([&] { return step_for_logits(inputs, logits, gate); });
}

Result<void> CudaLlama::step_and_choose(std::span<const StepInput> inputs,
                                        std::span<const Choice> choices, std::span<Token> tokens,
                                        const LayerGate& gate) {
  return unless_full([&] { return step_for_tokens(inputs, choices, tokens, gate); });
}

Result<void> CudaLlama::step_and_tell(std::span<const StepInput> inputs,
                                      std::span<const RowQuestion> questions,
                                      std::span<RowAnswer> answers, const LayerGate& gate) {
  return unless_full([&] { return step_for_answers(inputs, questions, answers, gate); });
}

Result<void> CudaLlama::step_for_answers(std::span<const StepInput> inputs,
                                         std::span<const RowQuestion> questions,
                                         std::span<RowAnswer> answers, const LayerGate& gate) {
  KVTIER_CHECK(!questions.empty() && answers.size() == questions.size());
  const std::uint32_t padded = padded_rows(inputs, gate);
  const auto planned = plan(inputs, {}, padded);
  if (!planned) return planned.error();
  KVTIER_CHECK((padded != 0 ? inputs.size() : (*planned)->logit_rows) == questions.size());
  compute(**planned, padded, gate);
  teller_.tell(logits_.get(), config_.vocab_size, questions, answers, stream());
  return {};
}

Result<void> CudaLlama::step_for_logits(std::span<const StepInput> inputs, std::span<float> logits,
                                        const LayerGate& gate) {
  const auto planned = plan(inputs, {}, 0);
  if (!planned) return planned.error();
  forward(**planned, gate);
  const std::size_t wanted = std::size_t{(*planned)->logit_rows} * config_.vocab_size;
  if (wanted == 0) return {};
  KVTIER_CHECK(logits.size() >= wanted);
  kc::check(cudaMemcpyAsync(logits.data(), logits_.get(), wanted * sizeof(float),
                            cudaMemcpyDeviceToHost, stream_.get()),
            "cudaMemcpyAsync");
  wait();
  return {};
}

Result<void> CudaLlama::step_for_tokens(std::span<const StepInput> inputs,
                                        std::span<const Choice> choices, std::span<Token> tokens,
                                        const LayerGate& gate) {
  KVTIER_CHECK(choices.size() == inputs.size() && tokens.size() == inputs.size());
  KVTIER_CHECK(inputs.size() <= kChoicesMax);
  for (const StepInput& input : inputs) KVTIER_CHECK(input.logit_rows <= 1);
  const std::uint32_t padded = padded_rows(inputs, gate);
  const auto planned = plan(inputs, choices, padded);
  if (!planned) return planned.error();
  compute(**planned, padded, gate);
  const auto chosen =
      static_cast<std::size_t>(std::ranges::count(inputs, 1U, &StepInput::logit_rows));
  KVTIER_CHECK(chosen > 0);
  kc::check(cudaMemcpyAsync(tokens_host_, tokens_.get(), chosen * sizeof(Token),
                            cudaMemcpyDeviceToHost, stream_.get()),
            "cudaMemcpyAsync");
  wait();
  const Token* next = tokens_host_;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].logit_rows == 1) tokens[i] = *next++;
  }
  return {};
}

// Of a step that is replayed; 0: it is not one.
std::uint32_t CudaLlama::padded_rows(std::span<const StepInput> inputs,
                                     const LayerGate& gate) const {
  if (!options_.graphs || gate || inputs.size() > kPaddedRowsMax) return 0;
  const bool decoding = std::ranges::all_of(inputs, [](const StepInput& input) {
    return input.logit_rows == 1 && input.tokens.size() == 1 && input.stage == Stage::answer;
  });
  return decoding ? std::bit_ceil(static_cast<std::uint32_t>(inputs.size())) : 0;
}

void CudaLlama::compute(const CudaPlan& plan, std::uint32_t padded_rows, const LayerGate& gate) {
  if (padded_rows != 0) {
    replay(plan, padded_rows);
  } else {
    forward(plan, gate);
  }
}

// The first step of a number of rows is launched as it is, so that every product has its algorithm
// before a graph is made.
void CudaLlama::replay(const CudaPlan& plan, std::uint32_t padded_rows) {
  const GraphKey key{padded_rows, plan.context_max, plan.samples != nullptr};
  auto graph = graphs_.find(key);
  if (graph == graphs_.end()) {
    if (rows_seen_.insert(padded_rows).second) return forward(plan, {});
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t made = nullptr;
    kc::check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
    forward(plan, {});
    kc::check(cudaStreamEndCapture(stream_.get(), &captured), "cudaStreamEndCapture");
    const cudaError_t code = cudaGraphInstantiate(&made, captured, 0);
    cudaGraphDestroy(captured);
    kc::check(code, "cudaGraphInstantiate");
    graph = graphs_.emplace(key, made).first;
  }
  kc::check(cudaGraphLaunch(graph->second, stream_.get()), "cudaGraphLaunch");
}

void CudaLlama::forward(const CudaPlan& plan, const LayerGate& gate) {
  Activations& a = *activations_;
  const std::size_t rows = plan.step.rows;
  const std::size_t hidden = config_.hidden_size;
  const std::size_t result_size = std::size_t{config_.heads} * config_.result_dim();
  std::uint32_t last_own_kv = config_.layers - 1;
  while (!config_.has_own_kv(last_own_kv)) --last_own_kv;
  if (plan.completed != 0) {
    kc::copy_pieces(plan.headers_from, plan.headers_to, plan.completed, 0, header_bytes(layout_), 0,
                    stream());
  }
  kc::embed(plan.ids, weights_.embedding.get(), a.residual.get(), rows, hidden, stream());
  for (std::uint32_t i = 0; i < config_.layers; ++i) {
    const CudaLayer& layer = weights_.layers[i];
    kc::add_rms_norm(a.residual.get(), i == 0 ? nullptr : a.projected.get(), layer.input_norm.get(),
                     a.normed.get(), rows, hidden, config_.rms_norm_eps, stream());
    project_qkv(i, plan);
    // K and V are all that a step without logits leaves.
    if (plan.logit_rows == 0 && i == last_own_kv) return;
    if (gate && config_.has_own_kv(i)) gate(config_.kept_layer(i));
    const Bf16* const results = attend(i, plan);
    products_.run(plan, layer.o, results, a.projected.get(), hidden, result_size, stream());
    kc::add_rms_norm(a.residual.get(), a.projected.get(), layer.post_attention_norm.get(),
                     a.normed.get(), rows, hidden, config_.rms_norm_eps, stream());
    feed_forward(plan, layer);
  }
  project_logits(plan);
}

// Q to be attended with; K and V into exact pages, and from those that are full into their records.
void CudaLlama::project_qkv(std::uint32_t layer, const CudaPlan& plan) {
  Activations& a = *activations_;
  const CudaLayer& weights = weights_.layers[layer];
  if (latent_) {
    latent_->project(plan, layer, weights.latent, a.normed.get(), a.q.get(), products_, stream());
    return quantise(layer, plan);
  }
  const bool own_kv = config_.has_own_kv(layer);
  const std::uint32_t kv_heads = own_kv ? config_.kv_heads : 0;
  const std::size_t heads = config_.heads + 2 * std::size_t{kv_heads};
  products_.run(plan, weights.qkv, a.normed.get(), a.qkv.get(), heads * config_.head_dim,
                config_.hidden_size, stream());
  kc::store_kv({.step = plan.step,
                .layer = config_.kept_layer(layer),
                .heads = config_.heads,
                .kv_heads = kv_heads,
                .head_dim = config_.head_dim,
                .qkv = a.qkv.get(),
                .q = a.q.get(),
                .q_norm = config_.qk_norm ? weights.q_norm.get() : nullptr,
                .k_norm = config_.qk_norm && own_kv ? weights.k_norm.get() : nullptr,
                .epsilon = config_.rms_norm_eps,
                .inverse_frequencies = inverse_frequencies_.get(),
                .sink_q = config_.sinks != 0 ? a.sink_q.get() : nullptr,
                .sink_position = config_.sinks != 0 ? config_.sinks + config_.windows[0] - 1 : 0},
               stream());
  if (own_kv) quantise(config_.kept_layer(layer), plan);
}

// The blocks that the step completes, into their records.
void CudaLlama::quantise(std::uint32_t layer, const CudaPlan& plan) {
  if (plan.completed == 0) return;
  kc::quantise_pages(layout_, layer, plan.step.pages, plan.completed_pages, plan.completed_records,
                     plan.completed, stream());
}

kc::Sight CudaLlama::sight(std::uint32_t layer, std::uint32_t first_row) const noexcept {
  const std::size_t first = std::size_t{first_row} * config_.heads * config_.head_dim;
  return {.window = config_.window(layer),
          .sinks = config_.sinks,
          .sink_q = config_.sinks != 0 ? activations_->sink_q.get() + first : nullptr};
}

float CudaLlama::attention_scale() const noexcept {
  return config_.attention_scale();
}

const Bf16* CudaLlama::attend(std::uint32_t layer, const CudaPlan& plan) {
  Activations& a = *activations_;
  if (latent_) {
    return latent_->attend(plan, layer, weights_.layers[layer].latent, a.q.get(), a.attended.get(),
                           attention_workspace_.get(), products_, stream());
  }
  if (plan.alone_rows != 0) attend_alone(layer, plan);
  for (const PrefillPiece& piece : plan.pieces) {
    if (is_tail(piece, sight(layer, piece.first_row))) {
      attend_tail(layer, plan, piece);
    } else {
      attend_piece(layer, plan, piece);
    }
  }
  return a.attended.get();
}

void CudaLlama::attend_alone(std::uint32_t layer, const CudaPlan& plan) {
  kc::StepRows alone = plan.step;
  alone.rows = plan.alone_rows;
  kc::decode_attention({.layout = layout_,
                        .step = alone,
                        .layer = config_.kept_layer(layer),
                        .heads = config_.heads,
                        .context_max = plan.context_max,
                        .scale = attention_scale(),
                        .q = activations_->q.get(),
                        .out = activations_->attended.get(),
                        .workspace = attention_workspace_.get(),
                        .sight = sight(layer, 0)},
                       stream());
}

void CudaLlama::attend_tail(std::uint32_t layer, const CudaPlan& plan, const PrefillPiece& piece) {
  const std::size_t first = piece.first_row * std::size_t{config_.heads} * config_.head_dim;
  kc::tail_attention({.layout = layout_,
                      .layer = config_.kept_layer(layer),
                      .heads = config_.heads,
                      .start = piece.start,
                      .rows = piece.rows,
                      .scale = attention_scale(),
                      .q = activations_->q.get() + first,
                      .out = activations_->attended.get() + first,
                      .block_table = plan.tables[piece.sequence],
                      .pages = plan.step.pages,
                      .row_page = plan.step.row_page + piece.first_row,
                      .workspace = attention_workspace_.get()},
                     stream());
}

// The earlier blocks are dequantised anew in every layer and step: memory traffic of a few per
// mille of the step's, for one layer's worth of memory.
void CudaLlama::attend_piece(std::uint32_t layer, const CudaPlan& plan, const PrefillPiece& piece) {
  const std::size_t first = piece.first_row * std::size_t{config_.heads} * config_.head_dim;
  const kc::Sight seen = sight(layer, piece.first_row);
  const kc::StoredSpan span = kc::StoredSpan::of(seen, piece.start, piece.rows);
  const std::uint64_t stride = std::uint64_t{span.blocks()} * kc::kTileTokens;
  const std::size_t behind = std::size_t{span.sink_blocks} * kc::kTileTokens * config_.head_dim;
  kc::gather_stored(layout_, config_.kept_layer(layer), plan.tables[piece.sequence], 0,
                    span.sink_blocks, stored_k_.get(), stored_v_.get(), stride, stream());
  kc::gather_stored(layout_, config_.kept_layer(layer), plan.tables[piece.sequence],
                    span.first_block, span.end_block - span.first_block, stored_k_.get() + behind,
                    stored_v_.get() + behind, stride, stream());
  kc::PrefillAttentionArgs args;
  args.layer = config_.kept_layer(layer);
  args.heads = config_.heads;
  args.kv_heads = config_.kv_heads;
  args.head_dim = config_.head_dim;
  args.start = piece.start;
  args.rows = piece.rows;
  args.scale = attention_scale();
  args.q = activations_->q.get() + first;
  args.out = activations_->attended.get() + first;
  args.stored_k = stored_k_.get();
  args.stored_v = stored_v_.get();
  args.tokens_stride = stride;
  args.pages = plan.step.pages;
  args.row_page = plan.step.row_page + piece.first_row;
  args.sight = seen;
  kc::prefill_attention(args, stream());
}

void CudaLlama::feed_forward(const CudaPlan& plan, const CudaLayer& layer) {
  Activations& a = *activations_;
  const std::size_t hidden = config_.hidden_size;
  const std::size_t inner = config_.intermediate_size;
  products_.run(plan, layer.gate_up, a.normed.get(), a.gate_up.get(), 2 * inner, hidden, stream());
  kc::swiglu(a.gate_up.get(), a.inner.get(), plan.step.rows, inner, stream());
  products_.run(plan, layer.down, a.inner.get(), a.projected.get(), hidden, inner, stream());
}

void CudaLlama::project_logits(const CudaPlan& plan) {
  if (plan.logit_rows == 0) return;
  Activations& a = *activations_;
  kc::gather_rms_norm(a.residual.get(), a.projected.get(), plan.logit_index, weights_.norm.get(),
                      a.normed.get(), plan.logit_rows, config_.hidden_size, config_.rms_norm_eps,
                      stream());
  products_.run_logits(plan, weights_.head(), a.normed.get(), logits_.get(), config_.vocab_size,
                       config_.hidden_size, stream());
  if (plan.samples == nullptr) return;
  kc::sample(logits_.get(), plan.samples, tokens_.get(), plan.logit_rows, config_.vocab_size,
             sample_workspace_.get(), stream());
}

}  // namespace kvtier::engine::cuda
