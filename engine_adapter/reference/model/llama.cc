#include "engine_adapter/reference/model/llama.h"

#include <algorithm>

#include "core/base/check.h"

namespace kvtier::engine {

Llama::Llama(const ModelConfig& config, const LlamaWeights& weights,
             const kernels::KernelTable& kernels, const RecordLayout& layout,
             std::uint32_t rows_max)
    : config_(config), weights_(weights), kernels_(kernels), layout_(layout), rows_max_(rows_max) {
  KVTIER_CHECK(rows_max > 0 && layout.layers == config.kept_layers() &&
               layout.kv_heads == config.kv_heads && layout.head_dim_k == config.head_dim &&
               layout.head_dim_v == config.head_dim_v());
  if (config.latent) {
    latent_.emplace(config, weights, kernels, rows_max);
  } else {
    inverse_frequencies_ =
        kernels::rope_inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling);
  }
  const std::size_t rows = rows_max;
  const std::size_t q_size = std::size_t{config.heads} * config.head_dim;
  const std::size_t kv_size = std::size_t{config.kv_heads} * config.head_dim;
  hidden_.resize(rows * config.hidden_size);
  normed_.resize(rows * config.hidden_size);
  projected_.resize(rows * config.hidden_size);
  q_.resize(rows * q_size);
  attended_.resize(rows * q_size);
  if (config.latent) values_.resize(rows * config.heads * config.latent->v_dim);
  k_.resize(rows * kv_size);
  v_.resize(rows * config.kv_heads * config.head_dim_v());
  gate_.resize(rows * config.intermediate_size);
  up_.resize(rows * config.intermediate_size);
  page_floats_ =
      std::size_t{layout.block_tokens} * config.kv_heads * (config.head_dim + config.head_dim_v());
  scratch_layers_ = config.looks_back() ? config.kept_layers() : 1;
  scratch_.resize(rows_max / layout.block_tokens * page_floats_ * scratch_layers_);
}

Result<void> Llama::step(std::span<const StepInput> inputs, std::span<float> logits,
                         const LayerGate& gate) {
  for (const StepInput& input : inputs) {
    const auto count = static_cast<std::uint32_t>(input.tokens.size());
    const auto reserved = input.sequence->reserve(input.sequence->length() + count);
    if (!reserved) return reserved.error();
  }
  plan(inputs);
  kernels_.embed(ids_.data(), weights_.embedding.data, weights_.embedding.type, hidden_.data(),
                 rows_, config_.hidden_size);
  for (std::uint32_t layer = 0; layer < config_.layers; ++layer) {
    attend(layer, weights_.layers[layer], gate);
    feed_forward(weights_.layers[layer]);
  }
  project_logits(inputs, logits);
  for (const StepInput& input : inputs) append(input);
  return {};
}

Result<void> Llama::step_and_choose(std::span<const StepInput> inputs,
                                    std::span<const Choice> choices, std::span<Token> tokens,
                                    const LayerGate& gate) {
  KVTIER_CHECK(choices.size() == inputs.size() && tokens.size() == inputs.size());
  const std::size_t vocab = config_.vocab_size;
  logits_.resize(inputs.size() * vocab);
  if (auto done = step(inputs, logits_, gate); !done) return done;
  std::size_t row = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    KVTIER_CHECK(inputs[i].logit_rows <= 1);
    if (inputs[i].logit_rows == 0) continue;
    tokens[i] = choose(std::span(logits_).subspan(row++ * vocab, vocab), choices[i].options,
                       choices[i].unit);
  }
  KVTIER_CHECK(row > 0);
  return {};
}

Result<void> Llama::step_and_tell(std::span<const StepInput> inputs,
                                  std::span<const RowQuestion> questions,
                                  std::span<RowAnswer> answers, const LayerGate& gate) {
  KVTIER_CHECK(!questions.empty() && answers.size() == questions.size());
  const std::size_t vocab = config_.vocab_size;
  logits_.resize(questions.size() * vocab);
  if (auto done = step(inputs, logits_, gate); !done) return done;
  const auto wants_sum = [](const RowQuestion& question) {
    return question.known || question.logprobs || question.likeliest > 0;
  };
  log_sums_.resize(questions.size());
  if (std::ranges::any_of(questions, wants_sum)) {
    kernels_.log_sum_exp(logits_.data(), log_sums_.data(), questions.size(), vocab);
  }
  for (std::size_t row = 0; row < questions.size(); ++row) {
    const RowQuestion& question = questions[row];
    const auto logits = std::span<const float>(logits_).subspan(row * vocab, vocab);
    const auto logprob = [&](Token token) {
      return static_cast<float>(logits[token] - log_sums_[row]);
    };
    RowAnswer& answer = answers[row] = {};
    for (const Choice& choice : question.choices) {
      const Token token = choose(logits, choice.options, choice.unit);
      answer.chosen.push_back({token, question.logprobs ? logprob(token) : 0});
    }
    if (question.known) answer.known = logprob(*question.known);
    answer.likeliest = likeliest_tokens(logits, question.likeliest, log_sums_[row]);
  }
  return {};
}

void Llama::append(const StepInput& input) {
  Sequence& sequence = *input.sequence;
  const std::uint32_t first = sequence.blocks_complete();
  sequence.append(input.tokens);
  for (std::uint32_t block = first; block < sequence.blocks_complete(); ++block) {
    sequence.write_header(block, {sequence.records()[block], layout_.record_bytes});
  }
}

void Llama::plan(std::span<const StepInput> inputs) {
  rows_ = 0;
  scratch_pages_used_ = 0;
  ids_.clear();
  positions_.clear();
  row_sequence_.clear();
  parts_.clear();
  sequences_.clear();
  completed_records_.clear();
  std::size_t entries = 0;
  for (const StepInput& input : inputs) entries += input.sequence->records().size();
  exact_k_.assign(entries, nullptr);
  exact_v_.assign(entries, nullptr);
  entries = 0;
  for (const StepInput& input : inputs) {
    KVTIER_CHECK(!input.tokens.empty() && input.logit_rows <= input.tokens.size());
    touch(input, rows_, entries);
    Sequence& sequence = *input.sequence;
    for (const Token token : input.tokens) {
      KVTIER_CHECK(token < config_.vocab_size);
      ids_.push_back(token);
      positions_.push_back(sequence.length() + static_cast<std::uint32_t>(positions_.size()) -
                           rows_);
      row_sequence_.push_back(static_cast<std::uint32_t>(sequences_.size()));
    }
    sequences_.push_back({.records = sequence.records().data(),
                          .exact_k = exact_k_.data() + entries,
                          .exact_v = exact_v_.data() + entries});
    entries += sequence.records().size();
    rows_ += static_cast<std::uint32_t>(input.tokens.size());
  }
  KVTIER_CHECK(rows_ > 0 && rows_ <= rows_max_);
  sink_positions_.assign(positions_.begin(), positions_.end());
  for (std::uint32_t& position : sink_positions_) {
    if (config_.sinks != 0) position = std::min(position, config_.sinks + config_.windows[0] - 1);
  }
  completed_k_.resize(completed_records_.size());
  completed_v_.resize(completed_records_.size());
}

void Llama::touch(const StepInput& input, std::uint32_t first_row, std::size_t first_entry) {
  const Sequence& sequence = *input.sequence;
  for_each_touched(input, layout_.block_tokens, [&](const TouchedBlock& touched) {
    Part part{.touched = touched,
              .entry = first_entry + touched.block,
              .first_row = first_row + touched.first_row,
              .page = nullptr,
              .layer_stride = page_floats_};
    if (touched.was_open()) {
      part.page = reinterpret_cast<float*>(sequence.open_block().values);
    } else if (touched.stays_open()) {
      part.page = reinterpret_cast<float*>(sequence.next_open_block().values);
    } else {
      // At most rows_max / block_tokens of them.
      part.page = scratch_.data() + scratch_pages_used_++ * page_floats_ * scratch_layers_;
      if (scratch_layers_ == 1) part.layer_stride = 0;
    }
    if (touched.completed) completed_records_.push_back(sequence.records()[touched.block]);
    parts_.push_back(part);
  });
}

void Llama::apply(const Linear& linear, const float* in, float* out, std::size_t n, std::size_t k) {
  kernels_.gemm(in, linear.weight.data, linear.weight.type, linear.bias_or_null(), out, rows_, n,
                k);
}

// Of normed_ to q_, and to k_ and v_ where the layer has its own, with their positions.
void Llama::project(std::uint32_t layer, const LlamaLayer& weights) {
  if (latent_) {
    latent_->project(layer, normed_.data(), rows_, positions_.data(), q_.data(), k_.data());
    return;
  }
  const std::size_t hidden = config_.hidden_size;
  const std::size_t q_size = std::size_t{config_.heads} * config_.head_dim;
  const std::size_t kv_size = std::size_t{config_.kv_heads} * config_.head_dim;
  apply(weights.q, normed_.data(), q_.data(), q_size, hidden);
  if (config_.qk_norm) {
    kernels_.rms_norm(q_.data(), weights.q_norm.data(), q_.data(),
                      std::size_t{rows_} * config_.heads, config_.head_dim, config_.rms_norm_eps);
  }
  if (config_.sinks != 0) {
    sink_q_.assign(q_.begin(), q_.begin() + static_cast<std::ptrdiff_t>(rows_ * q_size));
    kernels_.rope(sink_q_.data(), rows_, config_.heads, config_.head_dim, sink_positions_.data(),
                  inverse_frequencies_.data());
  }
  kernels_.rope(q_.data(), rows_, config_.heads, config_.head_dim, positions_.data(),
                inverse_frequencies_.data());
  if (!config_.has_own_kv(layer)) return;
  apply(weights.k, normed_.data(), k_.data(), kv_size, hidden);
  apply(weights.v, normed_.data(), v_.data(), kv_size, hidden);
  if (config_.qk_norm) {
    kernels_.rms_norm(k_.data(), weights.k_norm.data(), k_.data(),
                      std::size_t{rows_} * config_.kv_heads, config_.head_dim,
                      config_.rms_norm_eps);
  }
  kernels_.rope(k_.data(), rows_, config_.kv_heads, config_.head_dim, positions_.data(),
                inverse_frequencies_.data());
}

void Llama::attend(std::uint32_t layer, const LlamaLayer& weights, const LayerGate& gate) {
  const std::size_t hidden = config_.hidden_size;
  kernels_.rms_norm(hidden_.data(), weights.input_norm.data(), normed_.data(), rows_, hidden,
                    config_.rms_norm_eps);
  project(layer, weights);
  const std::uint32_t kept = config_.kept_layer(layer);
  point_at(kept);
  if (config_.has_own_kv(layer)) {
    store_kv(kept);
    if (gate) gate(kept);
  }
  kernels_.attention({.layout = &layout_,
                      .layer = kept,
                      .rows = rows_,
                      .heads = config_.heads,
                      .window = config_.window(layer),
                      .sinks = config_.sinks,
                      .sink_q = sink_q_.data(),
                      .value_channels = config_.latent ? config_.latent->kv_rank : 0,
                      .scale = config_.attention_scale(),
                      .q = q_.data(),
                      .out = attended_.data(),
                      .positions = positions_.data(),
                      .row_sequence = row_sequence_.data(),
                      .sequences = sequences_.data()});
  if (latent_) latent_->take_values(layer, attended_.data(), rows_, values_.data());
  apply(weights.o, latent_ ? values_.data() : attended_.data(), projected_.data(), hidden,
        std::size_t{config_.heads} * config_.result_dim());
  kernels_.add(hidden_.data(), projected_.data(), rows_ * hidden);
}

// Where attention finds the exact K and V of one layer.
void Llama::point_at(std::uint32_t layer) {
  const std::size_t k_floats =
      std::size_t{layout_.block_tokens} * config_.kv_heads * config_.head_dim;
  for (const Part& part : parts_) {
    exact_k_[part.entry] = part.page + layer * part.layer_stride;
    exact_v_[part.entry] = exact_k_[part.entry] + k_floats;
  }
}

// The step's K and V of one layer: into the exact pages, and from those that are full into their
// records.
void Llama::store_kv(std::uint32_t layer) {
  const std::uint32_t dim = config_.head_dim;
  const std::uint32_t dim_v = config_.head_dim_v();
  const std::size_t kv_heads = config_.kv_heads;
  std::size_t completed = 0;
  for (const Part& part : parts_) {
    const TouchedBlock& touched = part.touched;
    float* const k_page = part.page + layer * part.layer_stride;
    float* const v_page = k_page + layout_.block_tokens * kv_heads * dim;
    for (std::size_t token = 0; token < touched.tokens; ++token) {
      for (std::size_t head = 0; head < kv_heads; ++head) {
        const std::size_t from = (part.first_row + token) * kv_heads + head;
        const std::size_t to = head * layout_.block_tokens + touched.first_token + token;
        std::copy_n(k_.data() + from * dim, dim, k_page + to * dim);
        std::copy_n(v_.data() + from * dim_v, dim_v, v_page + to * dim_v);
      }
    }
    if (touched.completed) {
      completed_k_[completed] = k_page;
      completed_v_[completed++] = v_page;
    }
  }
  if (completed == 0) return;
  const LayerLayout of_layer = layout_.layer(layer);
  kernels_.quantise_and_scatter(
      {.layout = &of_layer,
       .blocks = static_cast<std::uint32_t>(completed),
       .page_tokens = layout_.block_tokens,
       .page_type = DType::f32,
       .k = kernels::head_major(completed_k_.data(), layout_.block_tokens, dim, DType::f32),
       .v = kernels::head_major(completed_v_.data(), layout_.block_tokens, dim_v, DType::f32),
       .records = completed_records_.data()});
}

void Llama::feed_forward(const LlamaLayer& weights) {
  const std::size_t hidden = config_.hidden_size;
  const std::size_t inner = config_.intermediate_size;
  kernels_.rms_norm(hidden_.data(), weights.post_attention_norm.data(), normed_.data(), rows_,
                    hidden, config_.rms_norm_eps);
  apply(weights.gate, normed_.data(), gate_.data(), inner, hidden);
  apply(weights.up, normed_.data(), up_.data(), inner, hidden);
  kernels_.swiglu(gate_.data(), up_.data(), gate_.data(), rows_ * inner);
  apply(weights.down, gate_.data(), projected_.data(), hidden, inner);
  kernels_.add(hidden_.data(), projected_.data(), rows_ * hidden);
}

void Llama::project_logits(std::span<const StepInput> inputs, std::span<float> logits) {
  const std::size_t hidden = config_.hidden_size;
  std::size_t wanted = 0;
  std::size_t end = 0;
  for (const StepInput& input : inputs) {
    end += input.tokens.size();
    std::copy_n(hidden_.data() + (end - input.logit_rows) * hidden, input.logit_rows * hidden,
                projected_.data() + wanted * hidden);
    wanted += input.logit_rows;
  }
  if (wanted == 0) return;
  KVTIER_CHECK(logits.size() >= wanted * config_.vocab_size);
  kernels_.rms_norm(projected_.data(), weights_.norm.data(), normed_.data(), wanted, hidden,
                    config_.rms_norm_eps);
  kernels_.gemm(normed_.data(), weights_.head.data, weights_.head.type, nullptr, logits.data(),
                wanted, config_.vocab_size, hidden);
}

}  // namespace kvtier::engine
