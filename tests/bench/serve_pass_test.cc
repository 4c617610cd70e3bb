#include "bench/serve/serve_pass.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/support/records.h"
#include "engine_adapter/reference/model/instance.h"
#include "engine_adapter/reference/scheduler/generator.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;

class ServePass : public testing::Test {
 protected:
  Workload tiny(WorkloadKind kind) const {
    return Workload::make(kind, shape_of(kind, WorkloadSize::tiny), loaded_->config.vocab_size, 1);
  }

  static PassOptions all_of(const Workload& workload) {
    return {.sessions = workload.sessions.size(), .deadline = Clock::now() + 5min};
  }

  Pass run(const Workload& workload, const PassOptions& options) {
    engine::CacheSpaces spaces(instance_.ns);
    engine::Scheduler scheduler(*instance_.model, *instance_.pool, spaces, {});
    return run_pass(scheduler, workload, options);
  }

  const std::unique_ptr<engine::LoadedModel> loaded_ =
      need(engine::LoadedModel::load(KVTIER_MODEL));
  engine::Instance instance_ =
      need(engine::Instance::make(*loaded_, {.device = {}, .pool_tokens = 2048}));
};

TEST_F(ServePass, answers_every_turn_as_if_it_were_asked_alone) {
  const Workload workload = tiny(WorkloadKind::chat);
  const Pass pass = run(workload, all_of(workload));
  ASSERT_EQ(pass.served.size(), workload.requests(workload.sessions.size()));
  const Answers answers = answers_of(pass, workload);
  engine::Generator alone(*instance_.model, *instance_.pool, id_of(instance_.ns), nullptr);
  const Session& session = workload.sessions[1];
  std::vector<Token> prompt = workload.prefixes[session.prefix];
  for (std::size_t turn = 0; turn < session.turns.size(); ++turn) {
    const auto& question = session.turns[turn].question;
    prompt.insert(prompt.end(), question.begin(), question.end());
    const auto expected =
        need(alone.generate({.prompt = prompt, .tokens_max = session.turns[turn].answer_tokens}));
    // The driver goes on after an end token; until there both say the same.
    const auto& answer = answers[1][turn];
    ASSERT_GE(answer.size(), expected.tokens.size());
    EXPECT_TRUE(
        std::ranges::equal(expected.tokens, std::span(answer).first(expected.tokens.size())));
    prompt.insert(prompt.end(), answer.begin(), answer.end());
  }
}

TEST_F(ServePass, counts_answers_that_are_not_the_known_ones_and_goes_on_with_those) {
  const Workload workload = tiny(WorkloadKind::chat);
  Answers known = answers_of(run(workload, all_of(workload)), workload);
  PassOptions options = all_of(workload);
  options.known = &known;
  EXPECT_EQ(run(workload, options).different, 0U);
  // Of a turn that nothing follows.
  known[0].back().back() ^= 1;
  EXPECT_EQ(run(workload, options).different, 1U);
}

TEST_F(ServePass, has_each_request_due_at_its_time_whatever_the_engine_does) {
  const Workload workload = tiny(WorkloadKind::document_qa);
  PassOptions options = all_of(workload);
  options.rate = 50;
  const Pass pass = run(workload, options);
  ASSERT_EQ(pass.served.size(), workload.sessions.size());
  const double last = workload.sessions.back().arrival;
  const double span = static_cast<double>(pass.served.size()) / options.rate;
  for (const Served& served : pass.served) {
    const double planned = workload.sessions[served.session].arrival / last * span;
    EXPECT_NEAR(served.due_s, planned, 1e-9);
    EXPECT_GT(served.token_s.front(), served.due_s);
    EXPECT_TRUE(std::ranges::is_sorted(served.token_s));
    EXPECT_GE(pass.seconds, served.ended_s);
  }
}

TEST_F(ServePass, has_the_next_turn_due_a_think_time_after_the_answer) {
  const Workload workload = tiny(WorkloadKind::chat);
  PassOptions options = all_of(workload);
  options.rate = 100;
  const Pass pass = run(workload, options);
  double ended_s = -1;
  for (const Served& served : pass.served) {
    if (served.session != 0) continue;
    if (served.turn > 0) {
      const double think_s = workload.sessions[0].turns[served.turn].think_s;
      EXPECT_NEAR(served.due_s, ended_s + think_s, 1e-9);
    }
    ended_s = served.ended_s;
  }
}

TEST_F(ServePass, gives_up_once_too_many_first_tokens_are_late) {
  const Workload workload = tiny(WorkloadKind::document_qa);
  PassOptions options = all_of(workload);
  options.first_token_bound_s = 0;
  EXPECT_TRUE(run(workload, options).given_up);
  options.first_token_bound_s = 1e6;
  const Pass pass = run(workload, options);
  EXPECT_FALSE(pass.given_up);
  EXPECT_EQ(pass.served.size(), workload.sessions.size());
}

TEST_F(ServePass, does_not_count_what_is_unfinished_at_the_stop) {
  const Workload workload = tiny(WorkloadKind::document_qa);
  PassOptions options = all_of(workload);
  options.stop_after_s = 0;
  EXPECT_TRUE(run(workload, options).served.empty());
}

TEST_F(ServePass, fails_at_its_deadline) {
  const Workload workload = tiny(WorkloadKind::document_qa);
  PassOptions options = all_of(workload);
  options.deadline = Clock::now();
  EXPECT_THROW(run(workload, options), std::runtime_error);
}

TEST_F(ServePass, fails_where_the_engine_refuses_a_request) {
  Workload workload = tiny(WorkloadKind::document_qa);
  workload.sessions[3].turns[0].question[0] = loaded_->config.vocab_size;
  EXPECT_THROW(run(workload, all_of(workload)), std::runtime_error);
}

}  // namespace
}  // namespace kvtier::bench
