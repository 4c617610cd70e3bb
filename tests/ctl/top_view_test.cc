// What top makes of two looks.
#include "ctl/top.h"

#include <gtest/gtest.h>

#include "core/terminal/terminal.h"

namespace kvtier::ctl {
namespace {

Json tier(const char* name, std::uint64_t hits, std::uint64_t hit_bytes, std::uint64_t inserted,
          std::uint64_t evictions) {
  return {{"tier", name},
          {"online", true},
          {"used_bytes", 512 << 20},
          {"reserved_bytes", 1 << 28},
          {"taken_bytes", 1 << 30},
          {"cap_bytes", 1 << 30},
          {"blocks", 512},
          {"pinned_bytes", 0},
          {"hinted_bytes", 0},
          {"hits", hits},
          {"hit_bytes", hit_bytes},
          {"inserted_bytes", inserted},
          {"evictions", evictions},
          {"failures", 0}};
}

Look look_at(double seconds, std::uint64_t n) {
  Look look;
  look.at = std::chrono::steady_clock::time_point{} +
            std::chrono::milliseconds(static_cast<long>(seconds * 1000));
  look.status = {{"version", "0.1.0"},
                 {"uptime_ms", 60'000},
                 {"blocks", 512},
                 {"blocks_max", 4096},
                 {"leases", 3},
                 {"reserved_slots", 64},
                 {"looked_up", 1000 + 100 * n},
                 {"misses", 900 + 20 * n},
                 {"dropped_write_backs", 2 * n},
                 {"gpus", Json::array()}};
  look.status["tiers"] = Json::array({tier("host", 100 + 80 * n, n << 20, n << 21, 10 * n)});
  look.status["disks"] = Json::array({{{"directory", "/d"},
                                       {"online", true},
                                       {"state", "online"},
                                       {"why", ""},
                                       {"taken_bytes", 1 << 20},
                                       {"cap_bytes", 1 << 30},
                                       {"bytes_written_per_day", 1 << 30},
                                       {"bytes_read", n << 22},
                                       {"bytes_written", n << 20},
                                       {"corrupt", 0},
                                       {"failures", 0}}});
  look.namespaces = Json::array({{{"id", "aa"},
                                  {"model", "small"},
                                  {"bytes", {{"host", 10}}},
                                  {"hits", {{"host", n}}},
                                  {"blocks", 1}},
                                 {{"id", "bb"},
                                  {"model", "large"},
                                  {"bytes", {{"host", 90}}},
                                  {"hits", {{"host", 5 * n}}},
                                  {"blocks", 9}}});
  look.sessions = Json::array({{{"name", "engine"},
                                {"pid", 77},
                                {"leases", 3},
                                {"blocks_leased", 30},
                                {"slots_reserved", 64},
                                {"silent_ms", 10}}});
  return look;
}

TEST(TopViewTest, rates_are_of_the_time_between_two_looks_and_totals_of_all_time) {
  const Json view = compare(look_at(10, 0), look_at(12, 1));
  EXPECT_DOUBLE_EQ(view["interval_s"], 2);
  EXPECT_DOUBLE_EQ(view["hit_rate_interval"], 0.8);
  EXPECT_DOUBLE_EQ(view["hit_rate"], 180.0 / 1100);
  EXPECT_DOUBLE_EQ(view["looked_up_per_s"], 50);
  EXPECT_DOUBLE_EQ(view["tiers"][0]["hits_per_s"], 40);
  EXPECT_DOUBLE_EQ(view["tiers"][0]["read_bytes_per_s"], 1 << 19);
  EXPECT_DOUBLE_EQ(view["tiers"][0]["write_bytes_per_s"], 1 << 20);
  EXPECT_DOUBLE_EQ(view["tiers"][0]["evictions_per_s"], 5);
  EXPECT_DOUBLE_EQ(view["disks"][0]["read_bytes_per_s"], 1 << 21);
  EXPECT_EQ(view["namespaces"][0]["model"], "large");
  EXPECT_DOUBLE_EQ(view["namespaces"][0]["hits_per_s"], 2.5);
}

TEST(TopViewTest, the_first_look_and_counters_that_went_back_show_no_rates) {
  const Json first = compare(look_at(10, 1), look_at(10, 1));
  EXPECT_TRUE(first["hit_rate_interval"].is_null());
  EXPECT_DOUBLE_EQ(first["tiers"][0]["hits_per_s"], 0);
  const Json back = compare(look_at(10, 9), look_at(12, 1));
  EXPECT_DOUBLE_EQ(back["looked_up_per_s"], 0);
  EXPECT_DOUBLE_EQ(back["tiers"][0]["read_bytes_per_s"], 0);
}

TEST(TopViewTest, every_line_fits_the_terminal_and_colours_are_only_there_if_wanted) {
  const Json view = compare(look_at(10, 0), look_at(12, 1));
  for (const unsigned columns : {20U, 80U, 200U}) {
    for (const auto& line : render_top(view, columns, false)) {
      EXPECT_LE(line.size(), columns);
      EXPECT_EQ(line.find('\x1b'), std::string::npos);
    }
  }
  std::string all;
  for (const auto& line : render_top(view, 200, true)) all += line + "\n";
  for (const char* shown :
       {"[##########..........]", "80.0 %", "engine", "large", "/d", "1.00 GiB"})
    EXPECT_NE(all.find(shown), std::string::npos) << shown << " is not in\n" << all;
  EXPECT_NE(all.find(kBold), std::string::npos);
}

TEST(TopViewTest, what_the_daemon_refuses_to_show_is_said) {
  Look hidden = look_at(1, 1);
  hidden.namespaces = hidden.sessions = nullptr;
  std::string all;
  for (const auto& line : render_top(compare(hidden, hidden), 200, false)) all += line + "\n";
  EXPECT_NE(all.find("sessions: only the cache's administrator"), std::string::npos) << all;
}

TEST(TopViewTest, a_line_is_cut_by_what_is_seen_of_it) {
  EXPECT_EQ(cut("abcdef", 3), "abc");
  EXPECT_EQ(cut("\x1b[1mabc\x1b[0m", 3), "\x1b[1mabc\x1b[0m");
  EXPECT_EQ(cut("äöü", 2), "äö");
}

}  // namespace
}  // namespace kvtier::ctl
