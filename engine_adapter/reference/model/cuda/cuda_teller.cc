#include "engine_adapter/reference/model/cuda/cuda_teller.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace kvtier::engine::cuda {
namespace {

namespace kc = kernels::cuda;
using kernels::cuda::check;

static_assert(kLikeliestMax <= kc::kLikeliestTokensMax);

template <class T>
void grow(kc::DeviceArray<T>& array, std::size_t count, StreamView stream) {
  if (count <= array.size()) return;
  check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  array = {};
  array = kc::DeviceArray<T>(count + count / 4);
}

}  // namespace

// Results, on the GPU as in host memory: [rows][likeliest], [choices] tokens, [choices] and [known]
// log probabilities.
struct Teller::Counts {
  explicit Counts(std::span<const RowQuestion> questions) : rows(questions.size()) {
    for (const RowQuestion& question : questions) {
      choices += question.choices.size();
      known += question.known ? 1 : 0;
      likeliest = std::max(likeliest, question.likeliest);
      logprobs = logprobs || question.logprobs || question.known || question.likeliest > 0;
    }
    KVTIER_CHECK(likeliest <= kLikeliestMax);
  }
  std::size_t tokens_at() const { return rows * likeliest * sizeof(kc::LikeliestToken); }
  std::size_t chosen_at() const { return tokens_at() + choices * sizeof(Token); }
  std::size_t known_at() const { return chosen_at() + choices * sizeof(float); }
  std::size_t bytes() const { return known_at() + known * sizeof(float); }

  std::size_t rows;
  std::size_t choices = 0;
  std::size_t known = 0;
  std::uint32_t likeliest = 0;
  bool logprobs = false;
};

Teller::~Teller() {
  cudaFreeHost(results_host_);
}

void Teller::make_room(const Counts& counts, std::size_t vocabulary, StreamView stream) {
  grow(sample_workspace_, kc::sample_workspace_bytes(counts.choices, vocabulary), stream);
  grow(likeliest_workspace_,
       kc::likeliest_workspace_bytes(counts.rows, vocabulary, counts.likeliest), stream);
  grow(log_sums_, counts.rows, stream);
  grow(results_, counts.bytes(), stream);
  if (results_host_bytes_ < results_.size()) {
    check(cudaFreeHost(std::exchange(results_host_, nullptr)), "cudaFreeHost");
    results_host_bytes_ = 0;
    void* at = nullptr;
    check(cudaMallocHost(&at, results_.size()), "cudaMallocHost");
    results_host_ = static_cast<std::byte*>(at);
    results_host_bytes_ = results_.size();
  }
}

void Teller::tell(const float* logits, std::size_t vocabulary,
                  std::span<const RowQuestion> questions, std::span<RowAnswer> answers,
                  StreamView stream) {
  const Counts counts(questions);
  make_room(counts, vocabulary, stream);
  arena_.begin(StepArena::room<kc::SampleRow>(counts.choices) +
               StepArena::room<std::uint32_t>(counts.choices) +
               2 * StepArena::room<std::uint32_t>(counts.known));
  const auto samples = arena_.take<kc::SampleRow>(counts.choices);
  const auto choice_rows = arena_.take<std::uint32_t>(counts.choices);
  const auto known = arena_.take<std::uint32_t>(counts.known);
  const auto known_rows = arena_.take<std::uint32_t>(counts.known);
  std::size_t choice = 0;
  std::size_t asked = 0;
  for (std::uint32_t row = 0; row < questions.size(); ++row) {
    for (const Choice& each : questions[row].choices) {
      samples.host[choice] = {.temperature = static_cast<float>(each.options.temperature),
                              .top_k = each.options.top_k,
                              .top_p = static_cast<float>(each.options.top_p),
                              .uniform = each.unit};
      choice_rows.host[choice++] = row;
    }
    if (!questions[row].known) continue;
    KVTIER_CHECK(*questions[row].known < vocabulary);
    known.host[asked] = *questions[row].known;
    known_rows.host[asked++] = row;
  }
  arena_.send(stream);
  std::byte* const results = results_.get();
  auto* const chosen = reinterpret_cast<std::uint32_t*>(results + counts.tokens_at());
  kc::sample(logits, samples.device, chosen, counts.choices, vocabulary, sample_workspace_.get(),
             stream, choice_rows.device);
  if (counts.logprobs) {
    kc::likeliest(logits, reinterpret_cast<kc::LikeliestToken*>(results), log_sums_.get(),
                  counts.rows, vocabulary, counts.likeliest, likeliest_workspace_.get(), stream);
    kc::token_logprobs(logits, log_sums_.get(), choice_rows.device, chosen,
                       reinterpret_cast<float*>(results + counts.chosen_at()), counts.choices,
                       vocabulary, stream);
    kc::token_logprobs(logits, log_sums_.get(), known_rows.device, known.device,
                       reinterpret_cast<float*>(results + counts.known_at()), counts.known,
                       vocabulary, stream);
  }
  check(
      cudaMemcpyAsync(results_host_, results, counts.bytes(), cudaMemcpyDeviceToHost, stream.get()),
      "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream.get()), "a step");
  hand_out(questions, answers, counts);
}

void Teller::hand_out(std::span<const RowQuestion> questions, std::span<RowAnswer> answers,
                      const Counts& counts) {
  const auto* row_likeliest = reinterpret_cast<const kc::LikeliestToken*>(results_host_);
  const auto* token = reinterpret_cast<const Token*>(results_host_ + counts.tokens_at());
  const auto* logprob = reinterpret_cast<const float*>(results_host_ + counts.chosen_at());
  const auto* known = reinterpret_cast<const float*>(results_host_ + counts.known_at());
  for (std::size_t row = 0; row < questions.size(); ++row, row_likeliest += counts.likeliest) {
    const RowQuestion& question = questions[row];
    RowAnswer& answer = answers[row] = {};
    for (std::size_t i = 0; i < question.choices.size(); ++i, ++token, ++logprob) {
      answer.chosen.push_back({*token, question.logprobs ? *logprob : 0});
    }
    if (question.known) answer.known = *known++;
    for (std::uint32_t i = 0; i < question.likeliest; ++i) {
      if (row_likeliest[i].token == kc::kNoToken) break;
      answer.likeliest.push_back({row_likeliest[i].token, row_likeliest[i].logprob});
    }
  }
}

}  // namespace kvtier::engine::cuda
