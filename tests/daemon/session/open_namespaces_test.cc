// Handles and what they stand for, with namespaces that are there and such that are yet to come.
#include "daemon/session/open_namespaces.h"

#include "daemon/limits.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class OpenNamespacesTest : public ::testing::Test {
 protected:
  std::uint32_t open(const std::string& model, bool makes) {
    return namespaces.open(encode(small_namespace(model)), makes, 0).value();
  }
  std::uint32_t opened(std::uint16_t ns) { return cache.known(ns).opened; }

  TestCache cache;
  OpenNamespaces namespaces{*cache};
};

TEST_F(OpenNamespacesTest, each_opening_has_a_handle_of_its_own_and_counts_until_it_is_closed) {
  const auto first = open("m", true), again = open("m", true);
  EXPECT_NE(first, again);
  const auto number = namespaces.number_of(first).value();
  EXPECT_EQ(namespaces.number_of(again).value(), number);
  EXPECT_EQ(namespaces.handles_of(number), (std::vector<std::uint32_t>{first, again}));
  EXPECT_EQ(opened(number), 2U);
  namespaces.close();
  EXPECT_EQ(opened(number), 0U);
  EXPECT_FALSE(namespaces.number_of(first));
}

TEST_F(OpenNamespacesTest, what_a_reader_waits_for_is_not_known_until_somebody_makes_it) {
  const auto handle = open("m", false);
  EXPECT_EQ(namespaces.number_of(handle).value(), OpenNamespaces::kNotKnown);
  EXPECT_EQ(namespaces.record_bytes_max(), 1U);
  const auto made = cache.open(small_namespace("m"));
  EXPECT_EQ(namespaces.number_of(handle).value(), made);
  EXPECT_EQ(opened(made), 1U);
  EXPECT_EQ(namespaces.record_bytes_max(), kRecordBytes);
}

TEST_F(OpenNamespacesTest, what_was_invalidated_while_a_reader_waited_is_never_found_by_it) {
  const auto waits = open("m", false), other = open("other", false);
  NamespaceFilter filter;
  filter.model = "m";
  EXPECT_EQ(namespaces.close_awaited(filter), std::vector<std::uint32_t>{waits});
  const auto made = cache.open(small_namespace("m"));
  EXPECT_NE(namespaces.number_of(waits).value(), made);
  EXPECT_EQ(opened(made), 0U);
  const auto made_other = cache.open(small_namespace("other"));
  EXPECT_EQ(namespaces.number_of(other).value(), made_other);
}

TEST_F(OpenNamespacesTest, there_are_so_many_in_one_session_and_no_handles_but_theirs) {
  for (std::uint32_t i = 0; i < limits::kNamespacesPerSessionMax; ++i) open("m", true);
  EXPECT_EQ(namespaces.open(encode(small_namespace("m")), true, 0).error().code, Errc::no_space);
  EXPECT_EQ(namespaces.number_of(limits::kNamespacesPerSessionMax).error().code, Errc::malformed);
}

}  // namespace
}  // namespace kvtier::daemon::testing
