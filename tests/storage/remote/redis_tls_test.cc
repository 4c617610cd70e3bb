#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

// An authority, and what it vouches for.
class RedisTls : public ::testing::Test {
 protected:
  void SetUp() override {
    KVTIER_NEEDS_REDIS();
    const bool made =
        run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
            "-subj /CN=authority -keyout ca.key -out ca.pem") &&
        certificate("server", "IP:127.0.0.1") && certificate("elsewhere", "DNS:other.invalid") &&
        certificate("client", "DNS:client");
    ASSERT_TRUE(made) << "openssl makes no certificates";
    tls_port_ = free_port();
  }
  bool run(const std::string& command) const {
    return std::system(("cd " + files_.path().string() + " && { " + command + "; } >/dev/null 2>&1")
                           .c_str()) == 0;
  }
  bool certificate(const std::string& name, const std::string& names) const {
    return run("printf subjectAltName=" + names + " > " + name + ".ext && openssl req -newkey ec " +
               "-pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " + name +
               ".key -out " + name + ".csr && openssl x509 -req -in " + name +
               ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile " + name +
               ".ext -out " + name + ".pem");
  }
  std::string file(const std::string& name) const { return files_.path() / name; }
  RedisServer::Options server_with(const std::string& name, const std::string& clients) const {
    return {.more = {"--tls-port", std::to_string(tls_port_), "--tls-cert-file",
                     file(name + ".pem"), "--tls-key-file", file(name + ".key"),
                     "--tls-ca-cert-file", file("ca.pem"), "--tls-auth-clients", clients}};
  }
  RemoteOptions options() const {
    auto options = TestRemote::options_of("rediss://127.0.0.1:" + std::to_string(tls_port_));
    options.tls_ca_file = file("ca.pem");
    return options;
  }

  TestDirectory files_;
  std::uint16_t tls_port_ = 0;
};

TEST_F(RedisTls, MovesRecordsBothWays) {
  RedisServer server(server_with("server", "no"));
  TestRemote store(options());
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  for (const TestRecord& record : test_records(20)) EXPECT_TRUE(store.works(record));
  server.kill();
  store.wait_for(RemoteState::offline);
  server.start();
  store.wait_for(RemoteState::online);
  EXPECT_TRUE(store.works(TestRecord(0, 1)));
}

TEST_F(RedisTls, ACertificateOfAnotherHostOrAuthorityIsRefused) {
  const RedisServer server(server_with("elsewhere", "no"));
  TestRemote store(options());
  EXPECT_NE(store.wait_for(RemoteState::offline).find("certificate"), std::string::npos);
  auto system = options();
  system.tls_ca_file.clear();
  TestRemote unknown(system);
  EXPECT_NE(unknown.wait_for(RemoteState::offline).find("tls_ca_file"), std::string::npos);
}

TEST_F(RedisTls, AServerMayAskForACertificate) {
  const RedisServer server(server_with("server", "yes"));
  TestRemote without(options());
  EXPECT_FALSE(without.wait_for(RemoteState::offline).empty());
  auto with_one = options();
  with_one.tls_cert_file = file("client.pem");
  with_one.tls_key_file = file("client.key");
  TestRemote store(with_one);
  EXPECT_EQ(store.wait_for(RemoteState::online), "");
  EXPECT_TRUE(store.works(TestRecord(1, 1)));
}

TEST_F(RedisTls, AServerWithoutTlsIsNotTakenForOneThatHangs) {
  const RedisServer plain({.tcp = true});
  auto options = this->options();
  options.url = "rediss" + plain.url().substr(5);
  TestRemote store(options);
  EXPECT_NE(store.wait_for(RemoteState::offline).find("TLS"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::storage::testing
