// Hints on their way to the daemon.
#include "client/session/thread/hints.h"

#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class HintsTest : public SessionParts {
 protected:
  Hints hints{conversation};
  const std::vector<Key> keys = std::vector<Key>(3);
};

TEST_F(HintsTest, SaysWhatIsKnownOfWhichBlocks) {
  hints.begin(wire::kTakesHints);
  hints.send(kHandle, 7, keys, {HintKind::keep, Tier::device, 2, std::chrono::seconds(77)});
  std::size_t heard_of = 0;
  hear([&](wire::Message::Reader m) {
    ASSERT_EQ(m.which(), Which::HINT);
    EXPECT_EQ(m.getId(), 0U) << "there is no answer to it";
    const auto hint = m.getHint();
    EXPECT_EQ(hint.getNs(), kHandle);
    EXPECT_EQ(hint.getFirst(), 8U) << "0: not told";
    EXPECT_EQ(hint.getKeys().size(), 3 * sizeof(Key));
    EXPECT_EQ(hint.getKind(), static_cast<std::uint8_t>(HintKind::keep));
    EXPECT_EQ(hint.getTier(), index_of(Tier::device));
    EXPECT_EQ(hint.getPriority(), 2U);
    EXPECT_EQ(hint.getSeconds(), 77U);
    ++heard_of;
  });
  EXPECT_EQ(heard_of, 1U);
  EXPECT_FALSE(conversation.owes_answers());
}

TEST_F(HintsTest, ATimeIsBoundedBothWays) {
  hints.begin(~std::uint64_t{0});
  hints.send(kHandle, 0, keys, {HintKind::keep, Tier::host, 0, std::chrono::seconds(-5)});
  hints.send(kHandle, 0, keys, {HintKind::keep, Tier::host, 0, std::chrono::hours(24 * 365 * 200)});
  std::vector<std::uint32_t> seconds;
  hear([&](wire::Message::Reader m) { seconds.push_back(m.getHint().getSeconds()); });
  EXPECT_EQ(seconds,
            (std::vector<std::uint32_t>{0, static_cast<std::uint32_t>(kHintKeepMax.count())}));
}

TEST_F(HintsTest, ManyBlocksGoInPiecesThatTheDaemonTakes) {
  hints.begin(wire::kTakesHints);
  hints.send(kHandle, 0, std::vector<Key>(2 * wire::kHintBlocksMax + 3), {});
  std::vector<std::size_t> pieces;
  hear([&](wire::Message::Reader m) { pieces.push_back(m.getHint().getKeys().size() / 16); });
  EXPECT_EQ(pieces, (std::vector<std::size_t>{wire::kHintBlocksMax, wire::kHintBlocksMax, 3}));
}

// It would end the session.
TEST_F(HintsTest, ADaemonThatKnowsNoHintsIsSentNone) {
  hints.send(kHandle, 0, keys, {});
  hints.begin(wire::kAnswersRecalls);
  hints.send(kHandle, 0, keys, {});
  EXPECT_TRUE(said().empty());
}

}  // namespace
}  // namespace kvtier::session
