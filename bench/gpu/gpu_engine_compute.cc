#include <string>

#include "bench/gpu/gpu_engine_setup.h"

namespace kvtier::bench {
namespace {

using std::chrono::steady_clock;

double ms_since(steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count();
}

void measure_prefill(const GpuEngineOptions& options, EngineSetup& setup, Report& report) {
  engine::Generator generator(setup.model(), setup.pool(), {}, nullptr);
  for (const std::uint32_t tokens : {2048U, 8192U, options.prompt_tokens}) {
    std::vector<double> times;
    for (std::uint32_t round = 0; round <= options.rounds; ++round) {
      const auto result =
          need(generator.generate({.prompt = setup.prompt(tokens, round + 1), .tokens_max = 1}));
      if (round != 0) {  // the first finds algorithms and makes room
        times.push_back(std::chrono::duration<double, std::milli>(result.first_token).count());
      }
    }
    const std::string name = "prefill " + std::to_string(tokens);
    const auto other = options.baseline.find("pytorch " + name);
    if (other != options.baseline.end()) report.add(other->first, other->second, "ms");
    report.add(name, median(times), "ms",
               other != options.baseline.end() ? std::optional(1.3 * other->second) : std::nullopt);
  }
}

// Milliseconds of one step of `count` sequences that hold `context` tokens each. `likeliest`: with
// the log probability of each chosen token, and so many of the likeliest with theirs.
double decode_ms(EngineSetup& setup, std::uint32_t count, std::uint32_t context,
                 std::uint32_t likeliest = 0) {
  constexpr std::uint32_t kSteps = 33;
  std::vector<std::unique_ptr<engine::Sequence>> sequences;
  for (std::uint32_t i = 0; i < count; ++i) {
    sequences.push_back(
        std::make_unique<engine::Sequence>(setup.pool(), NamespaceId{}, context + kSteps));
    const auto prompt = setup.prompt(context, i + 1);
    for (std::size_t at = 0; at < prompt.size();) {
      const std::size_t rows = std::min<std::size_t>(setup.model().rows_max(), prompt.size() - at);
      const engine::StepInput input{sequences[i].get(), std::span(prompt).subspan(at, rows), 0};
      need(setup.model().step({&input, 1}, {}));
      at += rows;
    }
  }
  std::vector<Token> tokens(count, 1);
  const std::vector<engine::Choice> choices(count);
  std::vector<engine::RowQuestion> questions;
  for (std::uint32_t i = 0; i < count; ++i) {
    questions.push_back(
        {.choices = std::span(choices).subspan(i, 1), .logprobs = true, .likeliest = likeliest});
  }
  std::vector<engine::RowAnswer> answers(count);
  std::vector<double> times;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    std::vector<engine::StepInput> inputs;
    for (std::uint32_t i = 0; i < count; ++i) {
      inputs.push_back(
          {sequences[i].get(), std::span(tokens).subspan(i, 1), 1, engine::Stage::answer});
    }
    std::vector<Token> chosen(count);
    const auto begin = steady_clock::now();
    if (likeliest == 0) {
      need(setup.model().step_and_choose(inputs, choices, chosen));
    } else {
      need(setup.model().step_and_tell(inputs, questions, answers));
      for (std::uint32_t i = 0; i < count; ++i) chosen[i] = answers[i].chosen.front().token;
    }
    if (step >= 3) times.push_back(ms_since(begin));  // after the graph has been made
    tokens = chosen;
  }
  return median(times);
}

// Milliseconds of a step of the last `rows` tokens of a prompt, which attend to `context` tokens in
// place and choose one.
double tail_ms(EngineSetup& setup, std::uint32_t rows, std::uint32_t context) {
  constexpr std::uint32_t kSteps = 11;
  const auto prompt = setup.prompt(context + rows, 1);
  engine::Sequence sequence(setup.pool(), NamespaceId{}, context + rows);
  for (std::size_t at = 0; at < context;) {
    const std::size_t chunk = std::min<std::size_t>(setup.model().rows_max(), context - at);
    const engine::StepInput input{&sequence, std::span(prompt).subspan(at, chunk), 0};
    need(setup.model().step({&input, 1}, {}));
    at += chunk;
  }
  const engine::Choice choice;
  std::vector<double> times;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    Token token = 0;
    const engine::StepInput input{&sequence, std::span(prompt).subspan(context), 1,
                                  engine::Stage::answer};
    const auto begin = steady_clock::now();
    need(setup.model().step_and_choose({&input, 1}, {&choice, 1}, {&token, 1}));
    if (step >= 3) times.push_back(ms_since(begin));
    sequence.truncate(context / engine::kBlockTokens);
  }
  return median(times);
}

}  // namespace

void measure_engine_compute(const GpuEngineOptions& options, Report& report) {
  EngineSetup setup(options);
  measure_prefill(options, setup, report);
  constexpr std::uint32_t kLikeliest = 20;
  constexpr double kMoreMs = 0.2;
  const double one = decode_ms(setup, 1, 1024);
  report.add("decode step, 1 sequence of 1024", one, "ms");
  report.add("the same with log probabilities, and those of the 20 likeliest",
             decode_ms(setup, 1, 1024, kLikeliest), "ms", one + kMoreMs);
  const double sixteen = decode_ms(setup, 16, 2048);
  report.add("decode step, 16 sequences of 2048", sixteen, "ms");
  report.add("the same 16 with log probabilities, and those of the 20 likeliest",
             decode_ms(setup, 16, 2048, kLikeliest), "ms", sixteen + kMoreMs);
  report.add("decode step, 1 sequence of " + std::to_string(options.prompt_tokens),
             decode_ms(setup, 1, options.prompt_tokens), "ms");
  report.add("step of the last 16 tokens of " + std::to_string(options.prompt_tokens),
             tail_ms(setup, engine::kBlockTokens, options.prompt_tokens - engine::kBlockTokens),
             "ms");
}

}  // namespace kvtier::bench
