// Online, offline, and the way back.
#include "storage/store/thread/availability.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class AvailabilityTest : public Parts {
 protected:
  struct Change {
    bool online;
    std::string why;
  };
  void listen() {
    availability.tell([this](DiskState state, const std::string& why) {
      changes_told.push_back({state == DiskState::online, why});
    });
  }
  void look_after_until(const std::function<bool()>& done) {
    pump_until([&] {
      availability.look_after();
      tell();
      return done();
    });
  }
  std::vector<Change> changes_told;
};

TEST_F(AvailabilityTest, GoingOfflineFailsTheQueuesOnceAndIsToldWithTheMend) {
  listen();
  availability.go_offline("the disk is full", ENOSPC);
  availability.go_offline("and gone", ENODEV);
  tell();
  EXPECT_FALSE(availability.online());
  EXPECT_FALSE(counters.online);
  ASSERT_EQ(queues_failed.size(), 1U);
  EXPECT_EQ(queues_failed[0].code, Errc::unavailable);
  ASSERT_EQ(changes_told.size(), 1U);
  EXPECT_FALSE(changes_told[0].online);
  EXPECT_NE(changes_told[0].why.find("the disk is full"), std::string::npos);
  EXPECT_NE(changes_told[0].why.find("free space"), std::string::npos);
}

TEST_F(AvailabilityTest, TheChangeIsToldBeforeTheFailuresThatItExplains) {
  listen();
  Told told;
  reads.take(read_of(TestRecord(0, 1), {0, 0}, told));
  ReadCommand late = read_of(TestRecord(0, 1), {0, 0}, told);
  bool told_first = false;
  late.done = [&](const Result<void>&) { told_first = !changes_told.empty(); };
  reads.take(std::move(late));
  availability.go_offline("broken", EIO);
  tell();
  EXPECT_EQ(told.error(), Errc::unavailable);
  EXPECT_TRUE(told_first);
}

TEST_F(AvailabilityTest, WhoAsksLateHearsThatItIsOffline) {
  availability.go_offline("broken", EIO);
  listen();
  tell();
  ASSERT_EQ(changes_told.size(), 1U);
  EXPECT_FALSE(changes_told[0].online);
}

TEST_F(AvailabilityTest, ItComesBackOnceAProbeSucceeds) {
  listen();
  probes = make_error(Errc::io, "still broken");
  availability.go_offline("broken", EIO);
  look_after_until([this] { return probed >= 3; });
  EXPECT_FALSE(availability.online());
  probes = {};
  look_after_until([this] { return availability.online(); });
  EXPECT_TRUE(counters.online);
  EXPECT_EQ(looked, 0U);
  ASSERT_EQ(changes_told.size(), 2U);
  EXPECT_TRUE(changes_told[1].online);
}

TEST_F(AvailabilityTest, ItIsNotProbedWhileATransferIsInFlightNorWhenItCloses) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 0}));
  faults.hold();
  Told told;
  reads.take(read_of(TestRecord(0, 1), {0, 0}, told));
  reads.start();
  device->submit();
  availability.go_offline("broken", EIO);
  EXPECT_EQ(availability.until_next_look(), BlockDevice::kForever);
  const auto due = Health::Clock::now() + options.probe_max;
  pump_until([&] { return Health::Clock::now() > due; });
  availability.look_after();
  EXPECT_EQ(probed, 0U);
  faults.release();
  pump_until([&] { return told.times() == 1; });
  EXPECT_EQ(told.error(), Errc::unavailable);
  shared.closing = true;
  availability.look_after();
  EXPECT_EQ(probed, 0U);
  shared.closing = false;
  look_after_until([this] { return availability.online(); });
}

TEST_F(AvailabilityTest, WhereNothingCanBeWrittenReadsGoOnAndItComesBackMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 0}));
  std::vector<DiskState> states;
  availability.tell([&](DiskState state, const std::string&) { states.push_back(state); });
  Told read, written;
  writes.take(write_of(TestRecord(0, 2), {0, 1}, written, 2));
  availability.go_read_only("the disk is full", ENOSPC);
  tell();
  EXPECT_EQ(written.error(), Errc::unavailable);
  EXPECT_FALSE(availability.online());
  EXPECT_TRUE(availability.readable() && counters.readable && !counters.online);
  faults.hold();
  reads.take(read_of(TestRecord(0, 1), {0, 0}, read));
  reads.start();
  device->submit();
  look_after_until([this] { return availability.online(); });
  faults.release();
  pump_until([&] { return read.times() == 1; });
  EXPECT_TRUE(read.ok());
  EXPECT_EQ(states, (std::vector<DiskState>{DiskState::read_only, DiskState::online}));
}

TEST_F(AvailabilityTest, FromReadOnlyItMayYetGoOfflineButNotTheOtherWay) {
  std::vector<DiskState> states;
  availability.tell([&](DiskState state, const std::string&) { states.push_back(state); });
  availability.go_read_only("full", ENOSPC);
  availability.go_offline("gone", ENODEV);
  availability.go_read_only("full", ENOSPC);
  tell();
  EXPECT_EQ(states, (std::vector<DiskState>{DiskState::read_only, DiskState::offline}));
}

TEST_F(AvailabilityTest, ALookThatFindsTheDirectoryGoneTakesItOffline) {
  looks = make_error(Errc::io, "another directory");
  look_after_until([this] { return !availability.online(); });
  EXPECT_EQ(looked, 1U);
  EXPECT_NE(availability.offline().message.find("another directory"), std::string::npos);
}

TEST_F(AvailabilityTest, OneFailedTransferIsNotBelievedButAFullDeviceIs) {
  const auto failed = [](int code) {
    return BlockDevice::Completion{1, make_error(Errc::io, "failed"), code};
  };
  availability.transfer_ended(Health::Transfer::read, failed(EIO), {0, 1});
  EXPECT_TRUE(availability.online());
  availability.transfer_ended(Health::Transfer::write, failed(ENOSPC), {0, 2});
  EXPECT_FALSE(availability.online());
}

}  // namespace
}  // namespace kvtier::storage
