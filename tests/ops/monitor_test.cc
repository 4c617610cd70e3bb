// The HTTP listener of a running daemon: every path, every bound, and what it says of a control
// loop that stands still.
#include <nlohmann/json.hpp>

#include "daemon/config/listen_address.h"
#include "daemon/ops/limits.h"
#include "tests/ops/running_daemon.h"

namespace kvtier::daemon::testing {
namespace {

class MonitorTest : public ::testing::Test {
 protected:
  std::string socket() const { return (scratch / "s").string(); }
  bool comes_to_say(const std::string& path, int status) {
    return comes_to_hold([&] { return daemon.get(path).status == status; });
  }
  Scratch scratch;
  RunningDaemon daemon{scratch};
};

TEST_F(MonitorTest, every_path_is_served_with_its_type_and_with_headers_that_allow_nothing) {
  ASSERT_TRUE(comes_to_say("/readyz", 200));
  const std::map<std::string, std::string> types{
      {"/", "text/html; charset=utf-8"},
      {"/metrics", "text/plain; version=0.0.4; charset=utf-8"},
      {"/healthz", "text/plain; charset=utf-8"},
      {"/readyz", "text/plain; charset=utf-8"},
      {"/status", "application/json"}};
  for (const auto& [path, type] : types) {
    const auto answer = daemon.get(path);
    ASSERT_EQ(answer.status, 200) << path << ": " << answer.body;
    EXPECT_EQ(answer.headers.at("content-type"), type);
    EXPECT_FALSE(answer.body.empty());
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.headers.at("cache-control"), "no-store");
    EXPECT_TRUE(answer.headers.at("content-security-policy").starts_with("default-src 'none'"));
    EXPECT_FALSE(answer.headers.contains("access-control-allow-origin"));
  }
  EXPECT_EQ(daemon.get("/healthz").body, "ok\n");
  EXPECT_EQ(daemon.get("/metrics?x=1").status, 200);
  EXPECT_EQ(daemon.get("/etc/passwd").status, 404);
  EXPECT_EQ(daemon.get("/../status").status, 404);
}

TEST_F(MonitorTest, the_page_allows_its_own_script_by_a_number_that_is_new_each_time) {
  const auto once = daemon.get("/"), again = daemon.get("/");
  const std::string policy = once.headers.at("content-security-policy");
  const auto at = policy.find("script-src 'nonce-") + 18;
  const std::string nonce = policy.substr(at, 32);
  EXPECT_NE(once.body.find("<script nonce=\"" + nonce + "\">"), std::string::npos);
  EXPECT_NE(once.body.find("<style nonce=\"" + nonce + "\">"), std::string::npos);
  EXPECT_EQ(once.body.find("@NONCE@"), std::string::npos);
  EXPECT_EQ(again.body.find(nonce), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
}

TEST_F(MonitorTest, head_has_the_headers_of_get_and_no_body_and_the_connection_goes_on) {
  ASSERT_TRUE(comes_to_say("/readyz", 200));
  HttpConnectionToTest connection(daemon.port());
  connection.send("HEAD /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto head = connection.answer(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "6");
  connection.send("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(connection.answer().body, "ready\n");
}

TEST_F(MonitorTest, what_would_change_something_is_refused) {
  for (const std::string method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"}) {
    HttpConnectionToTest connection(daemon.port());
    connection.send(method + " /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const auto answer = connection.answer();
    EXPECT_EQ(answer.status, 405) << method;
    EXPECT_EQ(answer.headers.at("allow"), "GET, HEAD");
    EXPECT_TRUE(connection.closes());
  }
}

TEST_F(MonitorTest, a_name_that_is_not_its_own_is_refused) {
  const std::vector<std::string> own{"127.0.0.1",   "127.0.0.1:9470", "localhost",
                                     "LocalHost:1", "[::1]:9470",     "10.1.2.3"};
  for (const std::string& host : own)
    EXPECT_EQ(http_get(daemon.port(), "/healthz", host).status, 200) << host;
  const std::vector<std::string> others{
      "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "[::1", "", "node17"};
  for (const std::string& host : others)
    EXPECT_EQ(http_get(daemon.port(), "/status", host).status, 421) << host;
  HttpConnectionToTest without(daemon.port());
  without.send("GET /status HTTP/1.1\r\n\r\n");
  EXPECT_EQ(without.answer().status, 421);
}

TEST_F(MonitorTest, a_header_a_body_or_a_line_that_is_too_long_is_refused) {
  HttpConnectionToTest header(daemon.port());
  header.send("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n");
  EXPECT_EQ(header.answer().status, 431);
  HttpConnectionToTest body(daemon.port());
  body.send("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_EQ(body.answer().status, 413);
  HttpConnectionToTest line(daemon.port());
  line.send("GET /" + std::string(20'000, 'x') + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(line.answer().status, 431);
  HttpConnectionToTest noise(daemon.port());
  noise.send(std::string("\x16\x03\x01\x00\xff\x00\r\n\r\n", 10));
  EXPECT_EQ(noise.answer().status, 400);
  EXPECT_EQ(daemon.get("/healthz").status, 200);
}

// 32 requests that were sent in part kept everybody out for ten seconds, again and again.
TEST_F(MonitorTest, half_requests_keep_nobody_from_asking_after_its_health) {
  ASSERT_TRUE(comes_to_say("/readyz", 200));
  using Clock = std::chrono::steady_clock;
  std::vector<std::unique_ptr<HttpConnectionToTest>> half;
  for (std::size_t i = 0; i < 300; ++i) {
    half.push_back(std::make_unique<HttpConnectionToTest>(daemon.port()));
    half.back()->send("GET / HT");
    if (i % 30 != 29) continue;
    const auto began = Clock::now();
    EXPECT_EQ(daemon.get("/healthz").status, 200) << i;
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(1)) << i;
  }
  static_assert(300 > ops::kConnectionsMax);
  EXPECT_GE(daemon.metrics().at("kvtier_http_refused_connections_total"),
            300 - ops::kConnectionsMax);
  // The first had to go, and the last is cut off after its time.
  EXPECT_TRUE(half.front()->closes());
  EXPECT_TRUE(half.back()->closes());
}

TEST_F(MonitorTest, a_control_loop_that_stands_still_is_unhealthy_and_what_was_known_is_served) {
  ASSERT_TRUE(comes_to_say("/readyz", 200));
  EXPECT_EQ(daemon.metrics().at("kvtier_healthy"), 1);
  daemon.hold();
  ASSERT_TRUE(comes_to_say("/healthz", 503));
  EXPECT_NE(daemon.get("/healthz").body.find("the control loop has not turned for"),
            std::string::npos);
  EXPECT_EQ(daemon.get("/readyz").status, 503);
  const Metrics known = daemon.metrics();
  EXPECT_EQ(known.at("kvtier_healthy"), 0);
  EXPECT_EQ(known.at("kvtier_ready"), 0);
  EXPECT_GT(known.at("kvtier_snapshot_age_seconds"), 0.3);
  const auto status = nlohmann::json::parse(daemon.get("/status").body);
  EXPECT_TRUE(status["sick"].is_string());
  daemon.let_go();
  ASSERT_TRUE(comes_to_say("/healthz", 200));
  ASSERT_TRUE(comes_to_say("/readyz", 200));
  EXPECT_GT(daemon.metrics().at("kvtier_control_lag_max_seconds"), 0.3);
  // It waited, and did nothing.
  EXPECT_GT(daemon.metrics().at("kvtier_control_turn_max_seconds"), 0.3);
  EXPECT_LT(daemon.metrics().at("kvtier_control_turn_cpu_max_seconds"), 0.3);
  EXPECT_GT(nlohmann::json::parse(daemon.get("/status").body)["control_turn_max_s"], 0.3);
}

TEST(MonitorStart, until_the_control_loop_turns_it_is_healthy_and_not_ready) {
  const Scratch scratch;
  RunningDaemon daemon(scratch, "", false);
  EXPECT_EQ(daemon.get("/healthz").body, "loading\n");
  for (const char* path : {"/readyz", "/metrics", "/status"})
    EXPECT_EQ(daemon.get(path).status, 503);
  EXPECT_EQ(daemon.get("/").status, 200);
  daemon.loop();
  EXPECT_TRUE(comes_to_hold([&] { return daemon.get("/readyz").status == 200; }));
}

TEST(MonitorStart, an_address_that_is_taken_does_not_keep_the_cache_from_working) {
  const Scratch scratch, other;
  RunningDaemon first(scratch);
  const std::string taken = "127.0.0.1:" + std::to_string(first.port());
  Kvtierd second(other, small_config(other) + "[http]\nlisten = '" + taken + "'\n");
  WireClient client = WireClient::greeted((other / "s").string());
  EXPECT_TRUE(client.status().has_value());
  EXPECT_NE(second.output().find("http: cannot listen on " + taken), std::string::npos);
}

TEST(MonitorStart, what_other_hosts_reach_is_warned_of_and_a_wrong_address_is_a_misconfiguration) {
  const Scratch scratch;
  Kvtierd open(scratch, small_config(scratch) + "[http]\nlisten = '0.0.0.0:0'\n");
  WireClient client = WireClient::greeted((scratch / "s").string());
  EXPECT_NE(open.output().find("can be reached from other hosts"), std::string::npos);
  for (const std::string wrong : {"localhost:80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000",
                                  ":9470", "::1:9470", "127.0.0.1:9470 "}) {
    const auto config = parse_config("[http]\nlisten = '" + wrong + "'\n", "f.toml");
    ASSERT_FALSE(config.has_value()) << wrong;
    EXPECT_NE(config.error().message.find("f.toml:2:10: listen: expected an address"),
              std::string::npos)
        << config.error().message;
  }
  for (const std::string right : {"127.0.0.1:9470", "[::1]:1", "0.0.0.0:65535"})
    EXPECT_EQ(ops::to_string(ops::parse_listen(right).value()), right);
  EXPECT_FALSE(parse_config("[http]\nhosts = ['Node:80']\n", "f").has_value());
  EXPECT_EQ(parse_config("[http]\nhosts = ['node-1.example']\n", "f").value().http.hosts,
            std::vector<std::string>{"node-1.example"});
}

}  // namespace
}  // namespace kvtier::daemon::testing
