// Changes of the index: a batch a turn, and what is owed to it.
#include "storage/store/thread/index_changes.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class IndexChangesTest : public Parts {
 protected:
  void put_entry(const TestRecord& record, DiskLocation at) {
    changes.put({record.identity, at, record.bytes.size(), 1});
  }
  static NamespaceCommand named(unsigned kind) {
    const Namespace ns = test_namespace(kind);
    return {id_of(ns), encode(ns)};
  }
  std::size_t namespaces() { return index->namespaces()->size(); }
  // As the loop does on the way back.
  void come_back() {
    index_files.mend();
    ASSERT_TRUE(changes.revive());
    ASSERT_TRUE(changes.make_up());
    pump_until([this] {
      availability.look_after();
      return availability.online();
    });
  }
};

TEST_F(IndexChangesTest, NothingOfATurnIsSeenBeforeItsCommitAndWhoWaitsIsToldOnce) {
  put_entry(TestRecord(0, 1), {0, 1});
  int told = 0;
  changes.when_committed([&](const Result<void>& result) { told += result ? 1 : 100; });
  EXPECT_FALSE(is_indexed(TestRecord(0, 1)));
  changes.commit();
  changes.commit();
  EXPECT_TRUE(is_indexed(TestRecord(0, 1)));
  EXPECT_EQ(told, 1);
}

TEST_F(IndexChangesTest, ACommitThatFailsTakesTheStoreOfflineAndIsTold) {
  index_files.break_down(EIO);
  put_entry(TestRecord(0, 1), {0, 1});
  std::optional<Errc> told;
  changes.when_committed([&](const Result<void>& result) { told = result.error().code; });
  changes.commit();
  EXPECT_EQ(told, Errc::unavailable);
  EXPECT_FALSE(availability.online());
}

TEST_F(IndexChangesTest, WhatCouldNotBeErasedGoesBeforeTheStoreIsOnlineAgain) {
  put_entry(TestRecord(0, 1), {0, 1});
  put_entry(TestRecord(0, 2), {0, 2});
  changes.commit();
  index_files.break_down(EIO);
  availability.go_offline("broken", EIO);
  const Key gone = TestRecord(0, 1).identity.key;
  changes.erase_on_return({&gone, 1});
  ASSERT_NO_FATAL_FAILURE(come_back());
  EXPECT_FALSE(is_indexed(TestRecord(0, 1)));
  EXPECT_TRUE(is_indexed(TestRecord(0, 2)));
}

TEST_F(IndexChangesTest, ANamespaceToldWhileOfflineIsKeptForTheReturn) {
  availability.go_offline("broken", EIO);
  changes.put_namespace(named(0));
  changes.commit();
  EXPECT_EQ(namespaces(), 0U);
  ASSERT_NO_FATAL_FAILURE(come_back());
  EXPECT_EQ(namespaces(), 1U);
}

TEST_F(IndexChangesTest, ANamespaceWhoseCommitFailedIsKeptForTheReturn) {
  index_files.break_down(EIO);
  changes.put_namespace(named(0));
  changes.commit();
  ASSERT_FALSE(availability.online());
  ASSERT_NO_FATAL_FAILURE(come_back());
  EXPECT_EQ(namespaces(), 1U);
}

TEST_F(IndexChangesTest, WhatAWriteReplacesLeavesTheIndexWithTheTurnsBatch) {
  put_entry(TestRecord(0, 1), {0, 1});
  put_entry(TestRecord(0, 2), {0, 2});
  changes.commit();
  changes.erase_replaced(TestRecord(0, 1).identity.key);
  changes.erase_replaced(TestRecord(0, 2).identity.key);
  put_entry(TestRecord(0, 2), {1, 1});  // written anew, which comes later
  changes.commit();
  EXPECT_FALSE(is_indexed(TestRecord(0, 1)));
  const auto at = index->find(TestRecord(0, 2).identity.key);
  ASSERT_TRUE(at && *at);
  EXPECT_EQ(**at, (DiskLocation{1, 1}));
}

TEST_F(IndexChangesTest, WhatAWriteReplacesAndCouldNotBeErasedGoesBeforeTheReturn) {
  put_entry(TestRecord(0, 1), {0, 1});
  changes.commit();
  index_files.break_down(EIO);
  changes.erase_replaced(TestRecord(0, 1).identity.key);
  changes.commit();
  ASSERT_FALSE(availability.online());
  ASSERT_NO_FATAL_FAILURE(come_back());
  EXPECT_FALSE(is_indexed(TestRecord(0, 1)));
}

TEST_F(IndexChangesTest, ASyncThatFailsTakesTheStoreOffline) {
  put_entry(TestRecord(0, 1), {0, 1});
  changes.commit();
  index_files.break_down(ENOSPC);
  EXPECT_FALSE(changes.sync());
  EXPECT_FALSE(availability.online());
}

}  // namespace
}  // namespace kvtier::storage
