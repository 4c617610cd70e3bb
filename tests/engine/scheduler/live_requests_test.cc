#include "engine_adapter/reference/scheduler/live_requests.h"

#include "tests/engine/scheduler/engine_parts.h"

namespace kvtier::engine::test {
namespace {

using State = LiveRequest::State;

class LiveRequestsTest : public ScheduledTest {
 protected:
  EngineParts parts_{*model_, 16};
  LiveRequests& requests_ = parts_.requests;
};

TEST_F(LiveRequestsTest, OneThatWaitsIsInTheQueueUntilItIsTakenOutOrEnds) {
  LiveRequest& first = parts_.add(request(20, 4));
  LiveRequest& second = parts_.add(request(20, 4));
  EXPECT_EQ(requests_.waiting(), 2U);
  EXPECT_EQ(requests_.first_waiting(), &first);
  requests_.cancel(first.id);
  EXPECT_EQ(requests_.first_waiting(), &second);
  requests_.take_from_queue(second);
  EXPECT_EQ(second.state, State::running);
  EXPECT_EQ(requests_.waiting(), 0U);
  EXPECT_EQ(requests_.first_waiting(), nullptr);
  requests_.cancel_all();
}

TEST_F(LiveRequestsTest, TheOrderIsThatOfPriorityAndThenOfWhoWasFirst) {
  Request urgent = request(20, 4);
  urgent.priority = 1;
  LiveRequest& early = parts_.add(request(20, 4));
  LiveRequest& late = parts_.add(request(20, 4));
  LiveRequest& first = parts_.add(urgent);
  for (LiveRequest* const live : {&early, &late, &first}) requests_.take_from_queue(*live);
  EXPECT_EQ(requests_.running(), (std::vector<LiveRequest*>{&first, &early, &late}));
  // All of one client's have had the same, so its turn changes nothing.
  requests_.charge(first, 100);
  EXPECT_EQ(requests_.running_in_turn(), requests_.running());
  requests_.cancel_all();
}

TEST_F(LiveRequestsTest, WhoHasHadLessHasItsTurnFirst) {
  Request of_a = request(20, 4), of_b = request(20, 4);
  of_a.client = "a";
  of_b.client = "b";
  LiveRequest& a = parts_.add(of_a);
  LiveRequest& b = parts_.add(of_b);
  requests_.take_from_queue(a);
  requests_.take_from_queue(b);
  requests_.charge(a, 20);
  requests_.charge(a, 20);
  EXPECT_EQ(requests_.running_in_turn(), (std::vector<LiveRequest*>{&b, &a}));
  EXPECT_EQ(a.expected_tokens, 0U) << "of its prompt nothing is left to compute";
  requests_.cancel_all();
}

TEST_F(LiveRequestsTest, AnEndIsToldOnceAndItsMemoryStaysUntilTheSweep) {
  Request two = request(20, 4);
  two.samples = 2;
  LiveRequest& live = parts_.add(two);
  requests_.fail(live, make_error(Errc::no_space, "no memory in this test"));
  requests_.end(live, FinishReason::end_token);
  requests_.fail(live, make_error(Errc::invalid, "again"));
  EXPECT_EQ(live.state, State::ended);
  EXPECT_TRUE(requests_.all().empty());
  EXPECT_FALSE(requests_.empty());
  const RequestResult& result = parts_.told[0]->result.value();
  EXPECT_EQ(result.error.value().code, Errc::no_space);
  ASSERT_EQ(result.answers.size(), 2U);
  for (const Answer& answer : result.answers) EXPECT_EQ(answer.finish, FinishReason::failed);
  EXPECT_EQ(parts_.metrics.failed, 1U);
  EXPECT_EQ(parts_.metrics.finished, 0U);
  EXPECT_TRUE(requests_.sweep());
  EXPECT_TRUE(requests_.empty());
  EXPECT_FALSE(requests_.sweep());
}

}  // namespace
}  // namespace kvtier::engine::test
