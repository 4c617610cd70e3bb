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

// Milliseconds of one step of `count` sequences that hold `context` tokens each.
double decode_ms(EngineSetup& setup, std::uint32_t count, std::uint32_t context) {
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
  std::vector<double> times;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    std::vector<engine::StepInput> inputs;
    for (std::uint32_t i = 0; i < count; ++i) {
      inputs.push_back(
          {sequences[i].get(), std::span(tokens).subspan(i, 1), 1, engine::Stage::answer});
    }
    std::vector<Token> chosen(count);
    const auto begin = steady_clock::now();
    need(setup.model().step_and_choose(inputs, choices, chosen));
    if (step >= 3) times.push_back(ms_since(begin));  // after the graph has been made
    tokens = chosen;
  }
  return median(times);
}

}  // namespace

void measure_engine_compute(const GpuEngineOptions& options, Report& report) {
  EngineSetup setup(options);
  measure_prefill(options, setup, report);
  report.add("decode step, 1 sequence of 1024", decode_ms(setup, 1, 1024), "ms");
  report.add("decode step, 16 sequences of 2048", decode_ms(setup, 16, 2048), "ms");
  report.add("decode step, 1 sequence of " + std::to_string(options.prompt_tokens),
             decode_ms(setup, 1, options.prompt_tokens), "ms");
}

}  // namespace kvtier::bench
