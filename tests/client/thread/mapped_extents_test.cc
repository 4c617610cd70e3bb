// The daemon's extents as this process has them mapped.
#include "client/session/thread/mapped_extents.h"

#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class MappedExtentsTest : public SessionParts {
 protected:
  const std::uint64_t record_bytes = RecordLayout::of(test::small_namespace()).record_bytes;
  // What the next daemon says of the extents that it has too.
  Result<void> welcomed(const std::vector<std::uint32_t>& known) {
    capnp::MallocMessageBuilder message;
    auto welcome = message.initRoot<wire::Welcome>();
    auto list = welcome.initExtents(static_cast<unsigned>(known.size()));
    for (unsigned i = 0; i < list.size(); ++i) list.set(i, known[i]);
    return extents.take_welcome(welcome.asReader());
  }
  std::vector<std::uint32_t> said_in_hello() {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<wire::Hello>();
    extents.fill_hello(hello, false);
    std::vector<std::uint32_t> ids;
    for (const std::uint32_t id : hello.asReader().getExtents()) ids.push_back(id);
    std::ranges::sort(ids);
    return ids;
  }
};

TEST_F(MappedExtentsTest, ASlotsNameLeadsToItsExtentIfItIsLargeEnough) {
  ASSERT_TRUE(map_extent());
  EXPECT_TRUE(MappedExtents::Resolver(extents, record_bytes)(slot_name(kExtentSlots - 1)));
  EXPECT_FALSE(MappedExtents::Resolver(extents, record_bytes)(slot_name(kExtentSlots)))
      << "past its end";
  EXPECT_FALSE(MappedExtents::Resolver(extents, record_bytes + 1)(slot_name(0)))
      << "the slots are smaller";
  EXPECT_FALSE(MappedExtents::Resolver(extents, record_bytes)(slot_name(0, kExtent + 1)));
  extents.forget(kExtent);
  EXPECT_FALSE(MappedExtents::Resolver(extents, record_bytes)(slot_name(0)));
}

TEST_F(MappedExtentsTest, AnExtentIsToldOnce) {
  ASSERT_TRUE(map_extent());
  EXPECT_EQ(map_extent().error().code, Errc::malformed);
}

TEST_F(MappedExtentsTest, WhatTheNextDaemonHasTooIsKeptAndTheOthersAreDropped) {
  ASSERT_TRUE(map_extent(1));
  ASSERT_TRUE(map_extent(2));
  EXPECT_EQ(said_in_hello(), (std::vector<std::uint32_t>{1, 2}));
  const auto before = MappedExtents::Resolver(extents, record_bytes)(slot_name(0, 2)).extent;
  ASSERT_TRUE(welcomed({2}));
  EXPECT_EQ(MappedExtents::Resolver(extents, record_bytes)(slot_name(0, 2)).extent, before);
  EXPECT_FALSE(MappedExtents::Resolver(extents, record_bytes)(slot_name(0, 1)));
  EXPECT_EQ(welcomed({1}).error().code, Errc::malformed) << "it is not here";
}

TEST_F(MappedExtentsTest, WithoutADaemonAllAreKeptForAWhile) {
  ASSERT_TRUE(map_extent());
  const auto now = Clock::now();
  extents.keep_until(now + std::chrono::minutes(1));
  extents.drop_if_over(now);
  EXPECT_TRUE(MappedExtents::Resolver(extents, record_bytes)(slot_name(0)));
  extents.drop_if_over(now + std::chrono::minutes(1));
  EXPECT_FALSE(MappedExtents::Resolver(extents, record_bytes)(slot_name(0)));
}

TEST_F(MappedExtentsTest, MemoryOfAnotherKindOrThatIsNoMemoryTierIsMalformed) {
  EXPECT_EQ(map_extent(1, Tier::disk).error().code, Errc::malformed);
  EXPECT_EQ(event([](wire::Message::Builder m) { m.initExtent().setKind(1); }).error().code,
            Errc::malformed)
      << "this client has no GPU";
}

}  // namespace
}  // namespace kvtier::session
