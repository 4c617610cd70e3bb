#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "core/record/record.h"
#include "engine_adapter/reference/model/weights/random_weights.h"
#include "engine_adapter/reference/scheduler/generator.h"
#include "tests/engine/gpu/gpu_engine.h"

namespace kvtier::engine::test {
namespace {

class GpuGolden : public OnGpu, public testing::WithParamInterface<Checkpoint> {};

TEST_P(GpuGolden, LogitsAreThoseOfTheReferenceUpToBf16) {
  const auto model = load_checkpoint(GetParam());
  ASSERT_NE(model, nullptr);
  const Golden golden = read_golden(GetParam());
  ASSERT_FALSE(golden.tokens.empty());
  // Prompts whole and in pieces; ends of prompts; one token after another.
  const std::pair<std::uint32_t, Stage> ways[] = {{8192, Stage::prompt}, {100, Stage::prompt},
                                                  {16, Stage::prompt},   {64, Stage::answer},
                                                  {16, Stage::answer},   {1, Stage::answer}};
  for (const auto& [chunk, stage] : ways) {
    if (chunk == 1 && golden.tokens.size() > 1000) continue;
    GpuEngine engine(*model, StorageFormat::bf16, {.rows_max = 8192});
    const auto logits =
        logits_of(*engine.model, *engine.pool, golden.tokens, chunk, golden.rows, stage);
    const double error = relative_error(logits, golden.logits);
    std::printf("%s, chunks of %u of %s: relative error %.5f\n", GetParam().title, chunk,
                stage == Stage::prompt ? "prompt" : "answer", error);
    EXPECT_LT(error, 2e-2) << "chunks of " << chunk;
  }
}

const auto kTitle = [](const auto& test) { return std::string(test.param.title); };
INSTANTIATE_TEST_SUITE_P(Bundled, GpuGolden, testing::ValuesIn(kBundled), kTitle);
INSTANTIATE_TEST_SUITE_P(Families, GpuGolden, testing::ValuesIn(kFamilies), kTitle);
INSTANTIATE_TEST_SUITE_P(Latent, GpuGolden, testing::Values(kLatent[2], kLatent[3]), kTitle);
INSTANTIATE_TEST_SUITE_P(Windowed, GpuGolden, testing::ValuesIn(kWindowed), kTitle);

class GpuLlama : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    model_ = load_checkpoint(kBundled[0]);
    ASSERT_NE(model_, nullptr);
  }

  std::unique_ptr<TestModel> model_;
};

TEST_F(GpuLlama, AgreesWithTheCpuInEveryStorageFormat) {
  const auto tokens = read_golden(kBundled[1]).tokens;
  const auto prompt = std::span(tokens).first(700);
  for (const auto& [format, bound] :
       std::map<StorageFormat, double>{{StorageFormat::bf16, 2e-2},
                                       {StorageFormat::fp8_e4m3, 3e-2},
                                       {StorageFormat::fp8_e5m2, 5e-2}}) {
    const auto cpu = logits_of(*model_, format, prompt, 512, 100);
    for (const std::uint32_t chunk : {1024U, 100U, 16U}) {
      GpuEngine engine(*model_, format, {.rows_max = 1024});
      const auto gpu = logits_of(*engine.model, *engine.pool, prompt, chunk, 100);
      const double error = relative_error(gpu, cpu);
      std::printf("%s, chunks of %u: relative error %.5f\n", name(format), chunk, error);
      EXPECT_LT(error, bound) << name(format) << ", chunks of " << chunk;
    }
  }
}

// With the one before, with the first of all, with one behind which others have their own.
TEST_F(GpuLlama, AgreesWithTheCpuWhereLayersShareKAndV) {
  const auto known = random_shape("tiny").value();
  for (const auto& sources : std::vector<std::vector<std::uint32_t>>{
           {0, 0, 2, 2}, {0, 0, 0, 0}, {0, 1, 0, 1}, {0, 1, 2, 2}}) {
    TestModel model{known.config, {}, {}};
    model.config.kv_source = sources;
    model.weights = make_random_weights(model.config, 5);
    const auto tokens = random_tokens(300, model.config.vocab_size, 4);
    const auto cpu = logits_of(model, StorageFormat::bf16, tokens, 512, 40);
    for (const auto& [chunk, stage] : {std::pair{512U, Stage::prompt},
                                       {100U, Stage::prompt},
                                       {16U, Stage::answer},
                                       {1U, Stage::answer}}) {
      GpuEngine engine(model, StorageFormat::bf16, {.rows_max = 512});
      const auto gpu = logits_of(*engine.model, *engine.pool, tokens, chunk, 40, stage);
      EXPECT_LT(relative_error(gpu, cpu), 2e-2) << "chunks of " << chunk;
    }
  }
}

// YaRN's factor is in the queries, and what is kept has no V.
TEST_F(GpuLlama, AgreesWithTheCpuWithLatentAttention) {
  const auto known = random_shape("tiny-mla").value();
  for (const bool yarn : {false, true}) {
    TestModel model{known.config, {}, make_random_weights(known.config, 5)};
    if (yarn) {
      model.config.rope_scaling.kind = kernels::RopeScaling::Kind::yarn;
      model.config.rope_scaling.factor = 4;
      model.config.rope_scaling.original_max_positions = 2048;
      model.config.rope_scaling.attention_factor = 1.2;
    }
    const auto tokens = random_tokens(700, model.config.vocab_size, 4);
    for (const auto& [format, bound] :
         std::map<StorageFormat, double>{{StorageFormat::bf16, 2e-2},
                                         {StorageFormat::fp8_e4m3, 4e-2},
                                         {StorageFormat::fp8_e5m2, 6e-2}}) {
      const auto cpu = logits_of(model, format, tokens, 512, 40);
      for (const auto& [chunk, stage] : {std::pair{1024U, Stage::prompt},
                                         {100U, Stage::prompt},
                                         {16U, Stage::answer},
                                         {1U, Stage::answer}}) {
        GpuEngine engine(model, format, {.rows_max = 1024});
        const auto gpu = logits_of(*engine.model, *engine.pool, tokens, chunk, 40, stage);
        const double error = relative_error(gpu, cpu);
        std::printf("%s, chunks of %u: relative error %.5f\n", name(format), chunk, error);
        EXPECT_LT(error, bound) << name(format) << ", chunks of " << chunk << " yarn " << yarn;
      }
    }
  }
}

// Beyond what the model was trained for, in chunks and token by token, with pages given back.
TEST_F(GpuLlama, AgreesWithTheCpuWithSinksAndAWindow) {
  const auto tokens = read_golden(kBundled[1]).tokens;
  for (const auto& [sinks, window] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 100}, {4, 124}, {20, 300}}) {
    const auto model = load_checkpoint(kBundled[0]);
    ASSERT_TRUE(model->config.attend_within(sinks, window, 0));
    const auto prompt = std::span(tokens).first(900);
    const auto cpu = logits_of(*model, StorageFormat::bf16, prompt, 512, 60);
    for (const auto& [chunk, stage] : {std::pair{512U, Stage::prompt},
                                       {100U, Stage::prompt},
                                       {16U, Stage::answer},
                                       {1U, Stage::answer}}) {
      GpuEngine engine(*model, StorageFormat::bf16, {.rows_max = 1024});
      const auto gpu = logits_of(*engine.model, *engine.pool, prompt, chunk, 60, stage);
      const double error = relative_error(gpu, cpu);
      std::printf("%u sinks, window %u, chunks of %u: relative error %.5f\n", sinks, window, chunk,
                  error);
      EXPECT_LT(error, 2e-2) << sinks << " " << window << " " << chunk;
    }
  }
}

TEST_F(GpuLlama, LeavesRecordsThatProveTheirTokens) {
  const auto tokens = random_tokens(530, model_->config.vocab_size, 8);
  for (const std::uint32_t chunk : {1U, 7U, 100U, 530U}) {
    GpuEngine engine(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
    const NamespaceId ns = id_of(model_->ns(StorageFormat::fp8_e4m3));
    Sequence sequence(*engine.pool, ns, 600);
    while (sequence.length() < tokens.size()) {
      const auto rest = std::span(tokens).subspan(sequence.length());
      const StepInput input{&sequence, rest.first(std::min<std::size_t>(chunk, rest.size())), 0};
      ASSERT_TRUE(engine.model->step({&input, 1}, {}));
    }
    engine.model->wait();
    const RecordLayout& layout = engine.pool->layout();
    const auto keys = chain_keys(ns, 16, tokens);
    ASSERT_EQ(sequence.blocks_complete(), keys.size());
    std::vector<std::byte> record(layout.record_bytes);
    for (std::uint32_t block = 0; block < keys.size(); ++block) {
      ASSERT_EQ(cudaMemcpy(record.data(), sequence.records()[block], record.size(),
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
      const BlockIdentity identity{ns, keys[block], block == 0 ? Key{} : keys[block - 1], block};
      const auto verified = verify_header(record, layout, identity,
                                          std::span(tokens).subspan(std::size_t{block} * 16, 16));
      EXPECT_TRUE(verified) << verified.error().message;
    }
  }
}

// All bytes of the records of a prompt's complete blocks.
std::vector<std::byte> records_of(GpuEngine& engine, std::span<const Token> tokens,
                                  std::uint32_t chunk) {
  Sequence sequence(*engine.pool, {}, static_cast<std::uint32_t>(tokens.size()));
  while (sequence.length() < tokens.size()) {
    const auto rest = tokens.subspan(sequence.length());
    const StepInput input{&sequence, rest.first(std::min<std::size_t>(chunk, rest.size()))};
    EXPECT_TRUE(engine.model->step({&input, 1}, {}));
  }
  engine.model->wait();
  const RecordLayout& layout = engine.pool->layout();
  const std::size_t scales = std::size_t{layout.layers} * 2 * layout.kv_heads * sizeof(float);
  const std::size_t bytes = layout.header_bytes + layout.payload_bytes;
  std::vector<std::byte> all(sequence.blocks_complete() * bytes);
  for (std::uint32_t block = 0; block < sequence.blocks_complete(); ++block) {
    std::byte* const to = all.data() + block * bytes;
    EXPECT_EQ(cudaMemcpy(to, sequence.records()[block], bytes, cudaMemcpyDeviceToHost),
              cudaSuccess);
    std::fill(to + layout.scales_offset + (has_scales(layout.format) ? scales : 0),
              to + layout.header_bytes, std::byte{});  // nobody writes there
  }
  return all;
}

TEST_F(GpuLlama, PromptsLeaveTheSameBitsInChunksOfAnySize) {
  const auto tokens = random_tokens(1600, 300, 12);
  for (const char* config : {kFamilies[0].config, kFamilies[2].config, "tiny", "tiny-mla"}) {
    const auto path = source_directory() / config;
    const auto known = random_shape(std::filesystem::exists(path) ? path.string() : config).value();
    Namespace ns = model_->ns(StorageFormat::fp8_e4m3);
    ns.layers = known.config.layers;
    ns.kv_heads = known.config.kv_heads;
    ns.head_dim_k = known.config.head_dim;
    ns.head_dim_v = known.config.head_dim_v();
    GpuEngine engine(known.config, describe_random_weights(known.config, 5), RecordLayout::of(ns),
                     {.rows_max = 2048});
    const auto whole = records_of(engine, tokens, 2048);
    for (const std::uint32_t chunk : {1024U, 512U, 100U, 48U, 16U, 7U}) {
      EXPECT_TRUE(records_of(engine, tokens, chunk) == whole) << config << " " << chunk;
    }
  }
}

// `count` sequences: a prompt each, one after the other, then 40 tokens side by side.
std::vector<std::vector<Token>> answers(GpuEngine& engine, std::uint32_t count,
                                        const SamplerOptions& options) {
  const std::uint32_t vocab = engine.model->config().vocab_size;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<Token>> told(count);
  std::vector<Sampler> samplers;
  for (std::uint32_t i = 0; i < count; ++i) {
    sequences.push_back(std::make_unique<Sequence>(*engine.pool, NamespaceId{}, 256));
    SamplerOptions own = options;
    own.seed = i;
    samplers.emplace_back(own);
    const auto prompt = random_tokens(20 + 11 * i, vocab, i);
    const StepInput input{sequences.back().get(), prompt, 1};
    const Choice choice{own, samplers[i].draw()};
    Token token = 0;
    EXPECT_TRUE(engine.model->step_and_choose({&input, 1}, {&choice, 1}, {&token, 1}));
    told[i].push_back(token);
  }
  for (int step = 0; step < 40; ++step) {
    std::vector<StepInput> inputs;
    std::vector<Choice> choices;
    for (std::uint32_t i = 0; i < count; ++i) {
      inputs.push_back({sequences[i].get(), std::span(told[i]).last(1), 1, Stage::answer});
      choices.push_back({samplers[i].options(), samplers[i].draw()});
    }
    std::vector<Token> tokens(count);
    EXPECT_TRUE(engine.model->step_and_choose(inputs, choices, tokens));
    for (std::uint32_t i = 0; i < count; ++i) told[i].push_back(tokens[i]);
  }
  return told;
}

TEST_F(GpuLlama, GraphsGiveTheSameTokensAsLaunches) {
  for (const std::uint32_t count : {1U, 4U, 8U}) {
    for (const double temperature : {0.0, 0.8}) {
      const SamplerOptions options{.temperature = temperature, .top_k = 50, .top_p = 0.9};
      GpuEngine graphs(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
      GpuEngine launches(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024, .graphs = false});
      EXPECT_EQ(answers(graphs, count, options), answers(launches, count, options))
          << count << " sequences, temperature " << temperature;
    }
  }
}

// Of rows of a prompt and of the last, in one step: what the same rows' logits say on the host.
TEST_F(GpuLlama, TellsOfItsLogitsWhatTheCpuWouldTell) {
  const auto prompt = random_tokens(50, model_->config.vocab_size, 3);
  GpuEngine engine(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
  const auto logits = logits_of(*engine.model, *engine.pool, prompt, 1024, 3);
  const std::size_t vocab = model_->config.vocab_size;
  std::vector<double> sums(3);
  kernels::cpu_kernels().log_sum_exp(logits.data(), sums.data(), 3, vocab);
  const std::vector<Choice> choices{{{.temperature = 0}, 0},
                                    {{.temperature = 1, .top_k = 40}, 0.3},
                                    {{.temperature = 1, .top_p = 0.9}, 0.8}};
  const std::vector<RowQuestion> questions{{.known = prompt[48], .likeliest = 4},
                                           {.known = prompt[49]},
                                           {.choices = choices, .logprobs = true, .likeliest = 2}};
  Sequence sequence(*engine.pool, NamespaceId{}, 64);
  const StepInput input{&sequence, prompt, 3};
  std::vector<RowAnswer> answers(3);
  ASSERT_TRUE(engine.model->step_and_tell({&input, 1}, questions, answers));
  const auto logprob = [&](std::size_t row, Token token) {
    return static_cast<double>(logits[row * vocab + token]) - sums[row];
  };
  EXPECT_NEAR(answers[0].known, logprob(0, prompt[48]), 1e-5);
  EXPECT_NEAR(answers[1].known, logprob(1, prompt[49]), 1e-5);
  EXPECT_TRUE(answers[1].likeliest.empty() && answers[0].chosen.empty());
  for (const std::size_t row : {0U, 2U}) {
    const auto expected = likeliest_tokens(std::span(logits).subspan(row * vocab, vocab),
                                           questions[row].likeliest, sums[row]);
    ASSERT_EQ(answers[row].likeliest.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(answers[row].likeliest[i].token, expected[i].token);
      EXPECT_NEAR(answers[row].likeliest[i].logprob, expected[i].logprob, 1e-5);
    }
  }
  ASSERT_EQ(answers[2].chosen.size(), choices.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const auto row = std::span(logits).subspan(2 * vocab, vocab);
    EXPECT_EQ(answers[2].chosen[i].token, choose(row, choices[i].options, choices[i].unit));
    EXPECT_NEAR(answers[2].chosen[i].logprob, logprob(2, answers[2].chosen[i].token), 1e-5);
  }
  // A token has one log probability, wherever it is told: harnesses ask whether it is the best one.
  EXPECT_EQ(answers[2].chosen[0].logprob, answers[2].likeliest[0].logprob);
}

TEST_F(GpuLlama, ChoosesWhatTheCpuWouldChooseFromItsLogits) {
  const auto prompt = random_tokens(50, model_->config.vocab_size, 3);
  GpuEngine engine(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
  const auto logits = logits_of(*engine.model, *engine.pool, prompt, 1024, 1);
  for (int i = 0; i < 50; ++i) {
    Sequence sequence(*engine.pool, NamespaceId{}, 64);
    const StepInput input{&sequence, prompt, 1};
    const Choice choice{{.temperature = 1, .top_k = 40, .top_p = 0.95}, (i + 0.5) / 50};
    Token token = 0;
    ASSERT_TRUE(engine.model->step_and_choose({&input, 1}, {&choice, 1}, {&token, 1}));
    EXPECT_EQ(token, choose(logits, choice.options, choice.unit)) << i;
  }
}

TEST_F(GpuLlama, RowsThatPadABatchChangeNothing) {
  GpuEngine engine(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
  const auto three = answers(engine, 3, {});
  const auto again = answers(engine, 3, {});
  EXPECT_EQ(three, again);
  GpuEngine fresh(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
  const auto four = answers(fresh, 4, {});
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(three[i], four[i]) << i;
}

TEST_F(GpuLlama, LongAndShortInputsOfOneStepDoNotDisturbEachOther) {
  const auto one = random_tokens(300, model_->config.vocab_size, 6);
  const auto two = random_tokens(9, model_->config.vocab_size, 7);
  const auto three = random_tokens(65, model_->config.vocab_size, 8);
  const std::size_t vocab = model_->config.vocab_size;
  GpuEngine engine(*model_, StorageFormat::bf16, {.rows_max = 1024});
  Sequence first(*engine.pool, {}, 512), second(*engine.pool, {}, 512),
      third(*engine.pool, {}, 512);
  std::vector<float> logits(4 * vocab);
  const StepInput inputs[] = {{&first, one, 1}, {&second, two, 2}, {&third, three, 1}};
  ASSERT_TRUE(engine.model->step(inputs, logits));
  const auto alone_one = logits_of(*engine.model, *engine.pool, one, 1024, 1);
  const auto alone_two = logits_of(*engine.model, *engine.pool, two, 1024, 2);
  const auto alone_three = logits_of(*engine.model, *engine.pool, three, 1024, 1);
  const auto part = [&](std::size_t row, std::size_t rows) {
    return std::span(logits).subspan(row * vocab, rows * vocab);
  };
  EXPECT_LT(relative_error(part(0, 1), alone_one), 1e-2);
  EXPECT_LT(relative_error(part(1, 2), alone_two), 1e-2);
  EXPECT_LT(relative_error(part(3, 1), alone_three), 1e-2);
}

TEST_F(GpuLlama, RandomWeightsAreTheSameOnBothDevices) {
  for (const char* shape : {"tiny", "tiny-mla", "tests/data/checkpoints/qwen3/config.json",
                            "tests/data/checkpoints/qwen2.5/config.json"}) {
    const auto path = source_directory() / shape;
    const auto known = random_shape(std::filesystem::exists(path) ? path.string() : shape).value();
    TestModel model{known.config, {}, make_random_weights(known.config, 5)};
    const auto tokens = random_tokens(200, model.config.vocab_size, 4);
    const auto cpu = logits_of(model, StorageFormat::bf16, tokens, 512, 20);
    GpuEngine engine(known.config, describe_random_weights(known.config, 5),
                     RecordLayout::of(model.ns(StorageFormat::bf16)), {.rows_max = 512});
    const auto gpu = logits_of(*engine.model, *engine.pool, tokens, 512, 20);
    EXPECT_LT(relative_error(gpu, cpu), 2e-2) << shape;
  }
}

// All that the GPU has left, as other programs might take it.
class RestOfTheGpu {
 public:
  RestOfTheGpu() {
    for (std::size_t bytes = std::size_t{1} << 36U; bytes >= 4096; bytes /= 2) {
      void* at = nullptr;
      while (cudaMalloc(&at, bytes) == cudaSuccess) taken_.push_back(at);
    }
    (void)cudaGetLastError();
  }
  ~RestOfTheGpu() { give_back(); }
  void give_back() {
    for (void* at : taken_) cudaFree(at);
    taken_.clear();
  }

 private:
  std::vector<void*> taken_;
};

TEST_F(GpuLlama, AStepThatFindsNoMemoryFailsAndLaterOnesGoOn) {
  const auto tokens = random_tokens(1500, model_->config.vocab_size, 8);
  GpuEngine engine(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
  {
    Sequence sequence(*engine.pool, id_of(model_->ns(StorageFormat::fp8_e4m3)), 1500);
    ASSERT_TRUE(sequence.reserve(1000));
    RestOfTheGpu rest;
    std::vector<float> logits(model_->config.vocab_size);
    const StepInput input{&sequence, std::span(tokens).first(1000), 1};
    const auto failed = engine.model->step({&input, 1}, logits);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, Errc::no_space) << failed.error().message;
  }
  const auto after = logits_of(*engine.model, *engine.pool, tokens, 1000, 10);
  GpuEngine other(*model_, StorageFormat::fp8_e4m3, {.rows_max = 1024});
  EXPECT_LT(relative_error(after, logits_of(*other.model, *other.pool, tokens, 1000, 10)), 2e-2);
}

// Alone, among three others, and beside a prompt's rows.
TEST_F(GpuLlama, ARowHasTheSameLogitsInAnyCompanyWhereThatIsAskedFor) {
  GpuEngine engine(*model_, StorageFormat::fp8_e4m3,
                   {.rows_max = 1024, .graphs = false, .batch_invariant = true});
  EXPECT_TRUE(engine.model->batch_invariant());
  const std::size_t vocab = model_->config.vocab_size;
  const auto tokens = random_tokens(900, model_->config.vocab_size, 21);
  const auto begun = [&](std::size_t prompt) {
    auto sequence = std::make_unique<Sequence>(*engine.pool, NamespaceId{}, 1000);
    const StepInput input{sequence.get(), std::span(tokens).first(prompt)};
    EXPECT_TRUE(engine.model->step({&input, 1}, {}));
    return sequence;
  };
  const auto answer = [&](Sequence& sequence, std::uint32_t rows) {
    return StepInput{&sequence, std::span(tokens).subspan(sequence.length(), rows), rows,
                     Stage::answer};
  };
  std::vector<std::vector<float>> seen;
  for (const bool others : {false, true}) {
    for (const bool prompt : {false, true}) {
      std::vector<std::unique_ptr<Sequence>> sequences;
      for (const std::size_t length : {300U, 500U, 50U, 129U}) sequences.push_back(begun(length));
      Sequence fresh(*engine.pool, NamespaceId{}, 1000);
      std::vector<StepInput> inputs;
      if (others) inputs.push_back(answer(*sequences[2], 1));
      inputs.push_back(answer(*sequences[0], 1));
      inputs.push_back(answer(*sequences[1], 5));
      if (others) inputs.push_back(answer(*sequences[3], 3));
      if (prompt) inputs.push_back({&fresh, std::span(tokens).first(400)});
      std::size_t rows = 0;
      for (const StepInput& input : inputs) rows += input.logit_rows;
      std::vector<float> logits(rows * vocab);
      ASSERT_TRUE(engine.model->step(inputs, logits));
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>((others ? 1 : 0) * vocab);
      seen.emplace_back(first, first + static_cast<std::ptrdiff_t>(6 * vocab));
    }
  }
  for (const auto& logits : seen) {
    EXPECT_EQ(std::memcmp(logits.data(), seen[0].data(), logits.size() * sizeof(float)), 0);
  }
}

TEST_F(GpuLlama, RefusesWhatItHasNoCodeFor) {
  const auto refusal = [&](auto change, StorageFormat format = StorageFormat::fp8_e4m3) {
    ModelConfig config = model_->config;
    change(config);
    Namespace ns = model_->ns(format);
    ns.head_dim_k = ns.head_dim_v = config.head_dim;
    const auto made =
        cuda::CudaLlama::make(config, model_->weights, RecordLayout::of(ns), {.rows_max = 16});
    return made ? std::string("accepted") : made.error().message;
  };
  EXPECT_NE(refusal([](ModelConfig& c) { c.head_dim = 80; }).find("head_dim 80"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.heads = 34; }).find("16 query heads"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) {
              c.latent = LatentShape{.kv_rank = 64, .nope_dim = 16, .rope_dim = 8, .v_dim = 20};
            }).find("v_head_dim 20"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) {
              c.latent = LatentShape{.kv_rank = 528, .nope_dim = 16, .rope_dim = 8, .v_dim = 16};
            }).find("kv_lora_rank 528"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelConfig&) {}, StorageFormat::f32).find("f32"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig&) {}, StorageFormat::int4).find("int4"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::engine::test
