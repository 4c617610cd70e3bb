// Leases: granted, landing, released.
#include "client/session/thread/leases.h"

#include <sys/eventfd.h>

#include "client/session/limits.h"
#include "client/session/session.h"
#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class LeasesTest : public SessionParts {
 protected:
  static constexpr std::uint64_t kLease = 11;

  LeasesTest() {
    EXPECT_TRUE(map_extent());
    const auto ns = opened();
    const auto prompt = test::prompt_of(2 * ns->ns.block_tokens);
    const auto keys = chain_keys(ns->id, ns->ns.block_tokens, prompt);
    hold = std::make_shared<HeldBlocks>(session, ns, 0, Key{}, keys,
                                        test::proofs_of(ns->ns, prompt), 2);
  }
  void ask() {
    leases.ask(kHandle, hold, outcome);
    EXPECT_EQ(said(), std::vector{Which::LEASE});
  }
  Result<void> grant(std::uint64_t lease, const std::vector<std::uint64_t>& names) {
    return answer([&](wire::Message::Builder m) {
      auto leased = m.initLeased();
      leased.setLease(lease);
      auto of = leased.initSlots(static_cast<unsigned>(names.size()));
      auto tiers = leased.initTiers(static_cast<unsigned>(names.size()));
      for (unsigned i = 0; i < names.size(); ++i) {
        of.set(i, names[i]);
        tiers[i] = static_cast<kj::byte>(names[i] == 0 ? Tier::disk : Tier::host);
      }
    });
  }
  Result<void> ready(std::uint64_t lease, std::uint32_t block, std::uint64_t name) {
    return event([&](wire::Message::Builder m) {
      auto r = m.initReady();
      r.setLease(lease);
      r.initBlocks(1).set(0, block);
      r.initSlots(1).set(0, name);
    });
  }
  std::vector<HeldBlocks::Block> blocks() const { return hold->snapshot(); }

  // Never started: the lease's own release goes to nobody.
  const std::shared_ptr<Session> session = std::make_shared<Session>(
      ClientOptions{}, UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), [] {}, nullptr,
      kAnswerMax);
  std::shared_ptr<HeldBlocks> hold;
  std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
};

TEST_F(LeasesTest, WhatIsOnDiskLandsLaterAndWhatIsInMemoryIsReady) {
  ask();
  ASSERT_TRUE(grant(kLease, {slot_name(1), 0}));
  EXPECT_TRUE(outcome->wait(Clock::now())->has_value());
  EXPECT_EQ(blocks()[0].presence, HeldBlocks::Presence::ready);
  EXPECT_EQ(blocks()[1].presence, HeldBlocks::Presence::on_its_way);
  ASSERT_TRUE(ready(kLease, 1, slot_name(2)));
  EXPECT_EQ(blocks()[1].presence, HeldBlocks::Presence::ready);
  EXPECT_EQ(blocks()[1].slot.name, slot_name(2));
}

TEST_F(LeasesTest, ALeaseOfAnotherShapeOrInNoExtentIsMalformed) {
  ask();
  EXPECT_EQ(grant(kLease, {slot_name(0, kExtent + 1)}).error().code, Errc::malformed);
  ask();
  EXPECT_EQ(grant(kLease, {slot_name(0), slot_name(1), slot_name(2)}).error().code,
            Errc::malformed);
  ask();
  EXPECT_EQ(grant(0, {slot_name(0)}).error().code, Errc::malformed) << "slots and no lease";
}

TEST_F(LeasesTest, WhatLandsForALeaseThatWasReleasedIsNobodys) {
  ask();
  ASSERT_TRUE(grant(kLease, {slot_name(1), 0}));
  leases.release(kLease, {});
  EXPECT_EQ(said(), std::vector{Which::RELEASE});
  EXPECT_TRUE(ready(kLease, 1, slot_name(2)));
  EXPECT_EQ(blocks()[1].presence, HeldBlocks::Presence::on_its_way);
}

TEST_F(LeasesTest, AReleaseSaysHowManyBlocksWereOfUse) {
  leases.release(kLease, 1);
  hear([](wire::Message::Reader m) {
    ASSERT_EQ(m.which(), Which::RELEASE_PARTLY);
    EXPECT_EQ(m.getReleasePartly()[0].getLease(), kLease);
    EXPECT_EQ(m.getReleasePartly()[0].getUsable(), 1U);
  });
}

TEST_F(LeasesTest, ABlockThatWasNotLeasedCannotLand) {
  ask();
  ASSERT_TRUE(grant(kLease, {slot_name(1), 0}));
  EXPECT_EQ(ready(kLease, 2, slot_name(2)).error().code, Errc::malformed);
  EXPECT_EQ(ready(kLease, 1, slot_name(0, kExtent + 1)).error().code, Errc::malformed);
}

}  // namespace
}  // namespace kvtier::session
