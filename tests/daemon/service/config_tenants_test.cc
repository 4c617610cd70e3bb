// [[tenant]], [access] and [limits].
#include <gtest/gtest.h>

#include "core/base/units.h"
#include "daemon/config/config.h"
#include "daemon/peers/access.h"
#include "tests/daemon/support/config_error.h"

namespace kvtier::daemon {
namespace {

void expect_error_from(const std::string& text, const std::string& begin, const std::string& part) {
  const std::string message = error_of(text);
  EXPECT_TRUE(message.starts_with("k.toml:" + begin)) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(ConfigTenantsTest, a_tenant_has_salts_members_and_shares_of_the_tiers) {
  const auto config = parse_config(
      "[host]\ncapacity = '1GiB'\n"
      "[[tenant]]\nname = 'a'\nusers = ['root', 1001]\ngroups = [7]\nisolated = true\n"
      "quota = { host = '25%', disk = '2GiB' }\nguaranteed = { host = '64MiB' }\n"
      "[[tenant]]\nname = 'b'\nsalts = ['b-1', 'b-2']\n"
      "[[tenant]]\nname = 'default'\nquota = { host = '50%' }\n",
      "k.toml");
  ASSERT_TRUE(config) << config.error().message;
  const Tenants tenants = tenants_of(*config);
  ASSERT_EQ(tenants.size(), 3U);
  EXPECT_EQ(tenants.of_salt("a"), 1U);
  EXPECT_EQ(tenants.of_salt("b"), kDefaultTenant);
  EXPECT_EQ(tenants.of_salt("b-2"), 2U);
  EXPECT_EQ(tenants.of_salt(""), kDefaultTenant);
  EXPECT_EQ(tenants.limits(1, Tier::host), (TenantLimits{256_MiB, 64_MiB}));
  EXPECT_EQ(tenants.limits(1, Tier::disk), (TenantLimits{2_GiB, 0}));
  EXPECT_EQ(tenants.limits(1, Tier::device), TenantLimits{});
  EXPECT_EQ(tenants.limits(kDefaultTenant, Tier::host).quota, 512_MiB);
  EXPECT_NE(tenants.pool(1), tenants.pool(2));

  const auto access = Access::resolve(*config);
  ASSERT_TRUE(access) << access.error().message;
  EXPECT_TRUE(access->may_use(1, {1, 0, 0, {}}));
  EXPECT_TRUE(access->may_use(1, {1, 1001, 5, {}}));
  EXPECT_TRUE(access->may_use(1, {1, 5, 7, {}}));
  EXPECT_TRUE(access->may_use(1, {1, 5, 5, {6, 7}}));
  EXPECT_FALSE(access->may_use(1, {1, 5, 5, {6, 8}}));
  EXPECT_TRUE(access->may_use(2, {1, 5, 5, {}}));
}

TEST(ConfigTenantsTest, what_is_wrong_with_a_tenant_is_said_with_its_place) {
  const std::string a = "[[tenant]]\nname = 'a'\n";
  expect_error_from("tenant = 5\n", "1:10", "[[tenant]] tables");
  expect_error_from("[[tenant]]\nsalts = ['x']\n", "1:", "without a name");
  expect_error_from(a + "colour = 1\n", "3:10", "known there: groups, guaranteed");
  expect_error_from(a + "users = 'bob'\n", "3:9", "expected a list");
  expect_error_from(a + "users = ['1001']\n", "3:9", "expected a list");
  expect_error_from(a + "users = [-1]\n", "3:9", "expected a list");
  expect_error_from(a + "salts = []\n", "3:9", "1 to 64 salts");
  expect_error_from(a + "quota = 5\n", "3:9", "amounts by tier");
  expect_error_from(a + "quota = { hots = 5 }\n", "3:", "'hots' is no tier");
  expect_error_from(a + "quota = { host = '101%' }\n", "3:", "such as \"25%\"");
  expect_error_from(a + "isolated = 1\n", "3:12", "true or false");
  expect_error_from(a + a, "3:", "there twice");
  expect_error_from(a + "[[tenant]]\nname = 'b'\nsalts = ['a']\n", "3:", "listed twice");
  expect_error_from("[[tenant]]\nname = 'default'\nsalts = ['a']\n", "1:", "leave out its salts");
  expect_error_from(a + "guaranteed = { host = '2%' }\nquota = { host = '1%' }\n", " ",
                    "more than its quota");
  expect_error_from(a + "guaranteed = { host = '60%' }\n[[tenant]]\nname = 'b'\n"
                        "guaranteed = { host = '41%' }\n",
                    " ", "lower `guaranteed` of 'b'");
  expect_error_from(a + "guaranteed = { disk = 1 }\n", " ",
                    "more than all of the disk tier (0 bytes)");
}

TEST(ConfigTenantsTest, a_user_or_group_that_the_system_does_not_know_is_named) {
  const auto resolve = [](const std::string& text) {
    const auto access = Access::resolve(parse_config(text, "k").value());
    return access ? "known" : access.error().message;
  };
  EXPECT_NE(resolve("[[tenant]]\nname = 'a'\nusers = ['no-such-user']\n")
                .find("[[tenant]] 'a' users: no user 'no-such-user'"),
            std::string::npos);
  EXPECT_NE(resolve("[access]\nadmin_group = 'no-such-group'\n").find("admin_group: no group"),
            std::string::npos);
  EXPECT_EQ(resolve("[access]\nadmin_group = 'root'\nread_only_groups = ['root', 3]\n"), "known");
}

TEST(ConfigTenantsTest, bounds_have_ranges) {
  expect_error_from("[limits]\nsessions_max = 0\n", "2:16", "from 1 to");
  expect_error_from("[limits]\nleased_percent = 101\n", "2:18", "from 1 to 100");
  expect_error_from("[limits]\nframe_time_ms = 1\n", "2:17", "from 100 to");
}

TEST(ConfigTenantsTest, what_is_printed_is_read_back_the_same) {
  Config config;
  config.access.admin_group = "admins";
  config.access.read_only = {{"bob", "17"}, {"8"}};
  config.limits.sessions_max = 5;
  config.limits.hello_time = std::chrono::milliseconds(777);
  Config::Tenant tenant;
  tenant.name = "a \"b\"";
  tenant.salts = {"x", "y"};
  tenant.members = {{"alice", "1001"}, {"ml"}};
  tenant.quota = {std::nullopt, Config::Amount{25, true}, Config::Amount{3_GiB, false}};
  tenant.guaranteed[1] = Config::Amount{1_MiB, false};
  tenant.isolated = true;
  config.tenants = {tenant};
  const auto again = parse_config(to_toml(config), "k");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(to_toml(*again), to_toml(config));
  EXPECT_EQ(again->tenants, config.tenants);
  EXPECT_EQ(again->access.read_only, config.access.read_only);
  EXPECT_EQ(again->access.admin_group, "admins");
  EXPECT_EQ(again->limits.hello_time, config.limits.hello_time);
}

}  // namespace
}  // namespace kvtier::daemon
