// Filled blocks on their way to the daemon's commit.
#include "client/session/thread/commits.h"

#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class CommitsTest : public SessionParts {
 protected:
  FilledBlock block(const Namespaces::Entry& ns, std::uint32_t number) {
    FilledBlock filled;
    filled.ns = ns;
    filled.key.bytes[0] = std::byte(number);
    filled.block_index = number;
    const auto tokens = test::prompt_of(ns->ns.block_tokens);
    const auto proof = std::as_bytes(std::span(tokens));
    filled.proof.assign(proof.begin(), proof.end());
    filled.slots.push_back({{slot_name(number), nullptr}, conversation.connection(), right});
    return filled;
  }
  // Blocks of each frame.
  std::vector<std::size_t> frames() {
    std::vector<std::size_t> sizes;
    hear([&](wire::Message::Reader m) {
      ASSERT_EQ(m.which(), Which::COMMIT);
      EXPECT_EQ(m.getCommit().getNs(), kHandle);
      sizes.push_back(m.getCommit().getBlocks().size());
      last_id = m.getId();
    });
    return sizes;
  }
};

TEST_F(CommitsTest, BlocksOfANamespaceShareFramesOfABoundedSize) {
  const auto ns = opened();
  std::vector<FilledBlock> blocks;
  for (std::uint32_t n = 0; n < wire::kCommitBlocksMax + 3; ++n) blocks.push_back(block(ns, n));
  commits.send(std::move(blocks));
  EXPECT_EQ(frames(), (std::vector<std::size_t>{wire::kCommitBlocksMax, 3}));
  EXPECT_TRUE(answer([](wire::Message::Builder m) { m.setCommitted(3); }));
}

TEST_F(CommitsTest, BlocksInSlotsOfAnEarlierConnectionAreDroppedAndCounted) {
  const auto ns = opened();
  std::vector<FilledBlock> blocks{block(ns, 1)};
  end();
  begin();
  namespaces.open_all();
  said();
  ASSERT_TRUE(answer([](wire::Message::Builder m) { m.setOpened(kHandle); }));
  blocks.push_back(block(ns, 2));
  commits.send(std::move(blocks));
  EXPECT_EQ(frames(), std::vector<std::size_t>{1});
  EXPECT_EQ(counters.stats().blocks_dropped, 1U);
}

TEST_F(CommitsTest, WithoutAConnectionAllAreDropped) {
  const auto ns = opened();
  std::vector<FilledBlock> blocks{block(ns, 1), block(ns, 2)};
  end();
  commits.send(std::move(blocks));
  EXPECT_EQ(counters.stats().blocks_dropped, 2U);
}

TEST_F(CommitsTest, AnotherAnswerIsMalformedAndARefusalIsNot) {
  const auto ns = opened();
  commits.send({block(ns, 1)});
  frames();
  EXPECT_EQ(answer([](wire::Message::Builder m) { m.setDone(); }).error().code, Errc::malformed);
  commits.send({block(ns, 2)});
  frames();
  EXPECT_TRUE(answer([](wire::Message::Builder m) { m.initError(); })) << "nobody waits for it";
}

}  // namespace
}  // namespace kvtier::session
