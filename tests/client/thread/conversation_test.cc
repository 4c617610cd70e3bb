// What is said on the socket, and who waits for an answer.
#include "client/session/thread/conversation.h"

#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class ConversationTest : public SessionParts {
 protected:
  void ask(Conversation::Patience patience = Conversation::Patience::bounded) {
    conversation.ask([](wire::Message::Builder m) { m.setFlush(); },
                     [this](Result<wire::Message::Reader> reply) -> Result<void> {
                       ++told;
                       if (!reply) last_error = reply.error().code;
                       return {};
                     },
                     patience);
  }
  void wait_past_answer_max() const {
    const auto until = Clock::now() + conversation.answer_max();
    while (Clock::now() <= until) std::this_thread::yield();
  }
  int told = 0;
  std::optional<Errc> last_error;
};

TEST_F(ConversationTest, EveryRequestIsAnsweredOnceAndByItsNumber) {
  ask();
  EXPECT_EQ(said(), std::vector{Which::FLUSH});
  const auto first = last_id;
  ask();
  said();
  EXPECT_NE(last_id, first);
  EXPECT_TRUE(answer([](wire::Message::Builder m) { m.setDone(); }));
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(answer([](wire::Message::Builder m) { m.setDone(); })) << "nobody asked twice";
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(conversation.owes_answers());
}

TEST_F(ConversationTest, WhoWaitsIsToldWhenTheConnectionEndsAndTheConnectionIsThereUntilForgotten) {
  ask();
  conversation.hang_up(make_error(Errc::unavailable, "gone"));
  EXPECT_EQ(told, 1);
  EXPECT_EQ(last_error, Errc::unavailable);
  EXPECT_FALSE(conversation.is_open());
  EXPECT_TRUE(conversation.connection());
  conversation.forget();
  EXPECT_FALSE(conversation.connection());
}

TEST_F(ConversationTest, ASilentDaemonIsOverdueUnlessTheAnswerMayTakeLong) {
  ask(Conversation::Patience::unbounded);
  wait_past_answer_max();
  EXPECT_FALSE(conversation.is_overdue());
  ask();
  EXPECT_FALSE(conversation.is_overdue()) << "it was asked just now";
  wait_past_answer_max();
  EXPECT_TRUE(conversation.is_overdue());
  EXPECT_NE(conversation.silence().message.find("/run/a.sock"), std::string::npos);
}

TEST_F(ConversationTest, AFailureToSendIsKeptUntilSomebodyLooks) {
  daemon.reset();
  ask();
  conversation.send();
  EXPECT_TRUE(conversation.is_broken());
  EXPECT_EQ(told, 0);
  EXPECT_EQ(conversation.take_broken()->code, Errc::unavailable);
  EXPECT_FALSE(conversation.is_broken());
}

}  // namespace
}  // namespace kvtier::session
