// Flushes that engine threads wait for.
#include "client/session/thread/flushes.h"

#include "client/session/limits.h"
#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class FlushesTest : public SessionParts {
 protected:
  std::shared_ptr<Outcome> flush() {
    auto outcome = std::make_shared<Outcome>();
    flushes.add(outcome);
    return outcome;
  }
  // None: it is not told yet. It is not asked again after that.
  static std::optional<Result<void>> told(const std::shared_ptr<Outcome>& outcome) {
    return outcome->wait(Clock::now());
  }
  Result<void> done() {
    return answer([](wire::Message::Builder m) { m.setDone(); });
  }
};

TEST_F(FlushesTest, OneRequestIsOutAtATimeAndThoseThatComeMeanwhileGoWithTheNext) {
  const auto first = flush();
  const auto second = flush(), third = flush();
  EXPECT_EQ(said(), std::vector{Which::FLUSH});
  ASSERT_TRUE(done());
  EXPECT_TRUE(told(first).value());
  EXPECT_EQ(said(), std::vector{Which::FLUSH}) << "one for both";
  ASSERT_TRUE(done());
  EXPECT_TRUE(told(second).value());
  EXPECT_TRUE(told(third).value());
}

TEST_F(FlushesTest, SlotsOnTheirWayAreWaitedForUntilTheyAreLate) {
  const auto ns = opened();
  ns->pool(Tier::host).expect();
  const auto outcome = flush();
  said();
  ASSERT_TRUE(done());
  ASSERT_TRUE(flushes.next_late());
  EXPECT_LE(*flushes.next_late(), Clock::now() + kSlotsSettleMax);
  flushes.settle(*flushes.next_late() - std::chrono::milliseconds(1));
  EXPECT_TRUE(flushes.next_late()) << "it still waits";
  flushes.settle(*flushes.next_late());
  EXPECT_FALSE(flushes.next_late());
  EXPECT_TRUE(told(outcome).value());
}

TEST_F(FlushesTest, WithSlotsAtHandItEndsAtOnce) {
  const auto ns = opened();
  ns->pool(Tier::host).expect();
  const auto outcome = flush();
  said();
  ASSERT_TRUE(done());
  ns->pool(Tier::host).give_up();
  flushes.settle(Clock::now());
  EXPECT_TRUE(told(outcome).value());
}

TEST_F(FlushesTest, TheEndOfTheConnectionEndsAll) {
  const auto out = flush(), next = flush();
  end();
  EXPECT_EQ(told(out)->error().code, Errc::unavailable);
  EXPECT_EQ(told(next)->error().code, Errc::unavailable);
  EXPECT_EQ(told(flush())->error().code, Errc::unavailable) << "there is no connection";
}

TEST_F(FlushesTest, AnotherAnswerIsMalformed) {
  flush();
  said();
  EXPECT_EQ(answer([](wire::Message::Builder m) { m.setOpened(1); }).error().code, Errc::malformed);
}

}  // namespace
}  // namespace kvtier::session
