// Memory that runs out under samples, beams and steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

// Host memory of which only so much may be in use.
class BoundedMemory final : public KvMemory {
 public:
  Result<std::byte*> allocate(std::size_t bytes) override {
    if (used_ + bytes > most_) return make_error(Errc::no_space, "no memory in this test");
    used_ += bytes;
    return host_memory().allocate(bytes);
  }
  void free(std::byte* at, std::size_t bytes) noexcept override {
    used_ -= bytes;
    host_memory().free(at, bytes);
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, StreamView stream) override {
    host_memory().copy(to, from, bytes, stream);
  }
  void read(std::byte* host, const std::byte* from, std::size_t bytes, StreamView stream) override {
    host_memory().read(host, from, bytes, stream);
  }
  void write(std::byte* to, const std::byte* host, std::size_t bytes, StreamView stream) override {
    host_memory().write(to, host, bytes, stream);
  }
  DType exact_type() const noexcept override { return host_memory().exact_type(); }

  std::size_t used() const noexcept { return used_; }
  void allow_more(std::size_t bytes) noexcept { most_ = used_ + bytes; }

 private:
  std::size_t used_ = 0;
  std::size_t most_ = std::size_t{1} << 40;
};

// Finds no memory for steps of more than so many inputs, as a GPU does whose workspace cannot grow.
class NarrowModel final : public Model {
 public:
  NarrowModel(Model& inner, std::size_t inputs_max) : inner_(inner), inputs_max_(inputs_max) {}

  Result<void> step(std::span<const StepInput> inputs, std::span<float> logits,
                    const LayerGate& gate) override {
    if (inputs.size() > inputs_max_) return full(inputs);
    return inner_.step(inputs, logits, gate);
  }
  Result<void> step_and_choose(std::span<const StepInput> inputs, std::span<const Choice> choices,
                               std::span<Token> tokens, const LayerGate& gate) override {
    if (inputs.size() > inputs_max_) return full(inputs);
    return inner_.step_and_choose(inputs, choices, tokens, gate);
  }
  Result<void> step_and_tell(std::span<const StepInput> inputs,
                             std::span<const RowQuestion> questions, std::span<RowAnswer> answers,
                             const LayerGate& gate) override {
    if (inputs.size() > inputs_max_) return full(inputs);
    return inner_.step_and_tell(inputs, questions, answers, gate);
  }
  bool rows_are_independent() const noexcept override { return rows_are_independent_; }
  const ModelConfig& config() const noexcept override { return inner_.config(); }
  std::uint32_t rows_max() const noexcept override { return inner_.rows_max(); }

  std::size_t steps_failed = 0;
  bool rows_are_independent_ = true;

 private:
  // The tokens have been appended, their KV never came.
  Result<void> full(std::span<const StepInput> inputs) {
    ++steps_failed;
    for (const StepInput& input : inputs) {
      EXPECT_TRUE(input.sequence->reserve(input.sequence->length() +
                                          static_cast<std::uint32_t>(input.tokens.size())));
      input.sequence->append(input.tokens);
    }
    return make_error(Errc::no_space, "no workspace in this test");
  }

  Model& inner_;
  std::size_t inputs_max_;
};

class Room : public OverSmallModel<testing::Test> {
 protected:
  void start(SchedulerOptions options, std::size_t inputs_max = 1000) {
    const Namespace ns = model_->ns(kScheduledFormat);
    const RecordLayout layout = RecordLayout::of(ns);
    ns_ = id_of(ns);
    llama_ = std::make_unique<Llama>(model_->config, model_->weights, kernels::cpu_kernels(),
                                     layout, 64);
    narrow_ = std::make_unique<NarrowModel>(*llama_, inputs_max);
    pool_ = PagePool::create(layout, 400, memory_).value();
    exact_bytes_ =
        std::size_t{layout.layers} * layout.kv_heads * 16 * 2 * layout.head_dim_k * sizeof(float);
    options_ = options;
    engine_ = std::make_unique<Engine>(*narrow_, *pool_, leases_, options_);
  }
  ~Room() override {
    engine_.reset();
    pool_.reset();
    EXPECT_EQ(memory_.used(), 0U);
  }

  Request request(std::uint64_t seed, std::uint32_t samples) {
    Request made;
    made.prompt = random_tokens(20 + seed, model_->config.vocab_size, seed);
    made.tokens_max = 30;
    made.samples = samples;
    made.sampling = {.temperature = 0.9, .seed = seed * 100};
    return made;
  }
  std::shared_ptr<Collected> add(const Request& request) {
    EXPECT_TRUE(check_request(request, *narrow_, *pool_, options_));
    auto collected = std::make_shared<Collected>();
    engine_->add(RequestId(next_id_++), request, {ns_, nullptr}, collected);
    return collected;
  }
  void run() {
    for (int i = 0; !engine_->idle(); ++i) {
      ASSERT_LT(i, 100'000) << "it does not get on";
      engine_->turn();
      exact_most_ = std::max(exact_most_, pool_->exact_made());
    }
  }
  void expect_right(const Request& request, const Collected& collected) {
    ASSERT_TRUE(collected.result.has_value());
    ASSERT_FALSE(collected.result->error) << collected.result->error->message;
    for (std::uint32_t i = 0; i < request.samples; ++i) {
      EXPECT_EQ(collected.tokens(i), Scheduled::alone(*model_, request, i)) << "sample " << i;
    }
  }

  BoundedMemory memory_;
  NamespaceId ns_;
  std::unique_ptr<Llama> llama_;
  std::unique_ptr<NarrowModel> narrow_;
  std::unique_ptr<PagePool> pool_;
  std::size_t exact_bytes_ = 0;
  SchedulerOptions options_;
  DirectLeases leases_;
  std::unique_ptr<Engine> engine_;
  std::uint64_t next_id_ = 1;
  std::size_t exact_most_ = 0;
};

TEST_F(Room, samples_count_as_answers_when_requests_are_let_in) {
  start({.running_max = 8});
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 6; ++i) {
    const Request each = request(i, 4);
    asked.emplace_back(each, add(each));
  }
  run();
  for (const auto& [each, collected] : asked) expect_right(each, *collected);
  EXPECT_EQ(exact_most_, 16U);  // two requests at a time
}

TEST_F(Room, beams_count_twice_and_a_request_wider_than_all_others_runs_alone) {
  start({.running_max = 4});
  const Request narrow = request(1, 1);
  Request beams = request(2, 1);
  beams.sampling = {};
  beams.beam.width = 5;
  const auto first = add(narrow);
  const auto wide = add(beams);
  const auto last = add(narrow);
  run();
  expect_right(narrow, *first);
  expect_right(narrow, *last);
  ASSERT_TRUE(wide->result.has_value());
  EXPECT_FALSE(wide->result->error);
  EXPECT_EQ(exact_most_, 20U);
}

TEST_F(Room, what_a_burst_of_samples_took_is_given_back) {
  start({.running_max = 256});
  const Request wide = request(1, 100);
  const auto collected = add(wide);
  const std::size_t before = memory_.used();
  run();
  ASSERT_TRUE(collected->result.has_value());
  EXPECT_FALSE(collected->result->error);
  EXPECT_EQ(exact_most_, 200U);
  EXPECT_EQ(pool_->exact_made(), 64U);
  EXPECT_EQ(memory_.used(), before + 64 * exact_bytes_);
}

TEST_F(Room, who_finds_no_memory_for_open_blocks_waits_for_others_and_fails_only_alone) {
  start({.running_max = 256});
  memory_.allow_more(10 * exact_bytes_);  // for five answers
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Request each = request(i, 3);
    asked.emplace_back(each, add(each));
  }
  const auto too_wide = add(request(7, 6));
  const Request after = request(8, 5);
  const auto last = add(after);
  run();
  for (const auto& [each, collected] : asked) expect_right(each, *collected);
  ASSERT_TRUE(too_wide->result.has_value());
  ASSERT_TRUE(too_wide->result->error);
  EXPECT_EQ(too_wide->result->error->code, Errc::no_space);
  expect_right(after, *last);
  EXPECT_EQ(engine_->metrics().failed, 1U);
}

TEST_F(Room, a_step_without_memory_fails_one_request_and_the_others_answer_as_ever) {
  start({.running_max = 256}, 6);
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 8; ++i) {
    Request each = request(i, 1);
    each.logprobs = i % 2 == 0;
    asked.emplace_back(each, add(each));
  }
  run();
  std::size_t failed = 0;
  for (const auto& [each, collected] : asked) {
    ASSERT_TRUE(collected->result.has_value());
    if (collected->result->error) {
      ++failed;
    } else {
      expect_right(each, *collected);
    }
  }
  EXPECT_GT(narrow_->steps_failed, 0U);
  EXPECT_EQ(failed, narrow_->steps_failed);
  EXPECT_LE(failed, 2U);  // six fit
}

// Where a row's bits depend on its step, answers whose logits are looked at have a step of their
// own.
TEST_F(Room, the_second_part_of_a_step_goes_on_where_the_first_found_no_memory) {
  start({.running_max = 256}, 2);
  narrow_->rows_are_independent_ = false;
  Request wide = request(1, 5);
  wide.logprobs = true;
  const auto first = add(wide);
  const Request narrow = request(2, 1);
  const auto second = add(narrow);
  run();
  ASSERT_TRUE(first->result.has_value());
  EXPECT_TRUE(first->result->error);
  expect_right(narrow, *second);
}

}  // namespace
}  // namespace kvtier::engine::test
