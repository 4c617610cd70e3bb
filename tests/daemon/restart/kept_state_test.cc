// The state that a daemon leaves beside its extents, and which of them its successor reads.
#include "daemon/restart/kept_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/daemon/support/records.h"

namespace kvtier::daemon::testing {
namespace {

class KeptStateTest : public ::testing::Test {
 protected:
  KeptStateTest() {
    for (const Namespace& ns : all) EXPECT_TRUE(state.remember(encode(ns)));
    EXPECT_EQ(state.next_extent(), 1U);
    EXPECT_EQ(state.next_extent(), 2U);
    state.set_complete();
  }
  void set_version(std::uint32_t version) {
    constexpr off_t kVersionAt = 8;  // docs/format.md
    ASSERT_EQ(::pwrite(state.fd(), &version, sizeof version, kVersionAt),
              static_cast<ssize_t>(sizeof version));
  }
  Result<KeptState::Left> read() const { return KeptState::read(UniqueFd(::dup(state.fd()))); }

  const std::vector<Namespace> all{small_namespace("m"), namespace_with_extra("image"),
                                   namespace_of_digests("digest")};
  KeptState state = KeptState::create({}).value();
};

TEST_F(KeptStateTest, is_read_with_all_its_namespaces) {
  const auto left = read();
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->next_extent, 3U);
  EXPECT_EQ(left->lineage, state.lineage());
  ASSERT_EQ(left->encodings.size(), all.size());
  for (const Namespace& ns : all) EXPECT_EQ(left->encodings.at(id_of(ns)), encode(ns));
}

TEST_F(KeptStateTest, of_version_1_is_read_as_it_is) {
  set_version(1);
  const auto left = read();
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->next_extent, 3U);
  EXPECT_EQ(left->encodings.at(id_of(all[0])), encode(all[0]));
}

TEST_F(KeptStateTest, of_a_version_that_is_not_known_is_refused) {
  for (const std::uint32_t version : {0U, 3U, ~0U}) {
    set_version(version);
    const auto left = read();
    ASSERT_FALSE(left) << version;
    EXPECT_EQ(left.error().code, Errc::version) << left.error().message;
  }
}

}  // namespace
}  // namespace kvtier::daemon::testing
