#include "core/wire/sync_request.h"

#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

using session::SyncSession;

class SyncRequestTest : public ClientTest {
 protected:
  Result<std::string> version_of(Deadline deadline) {
    auto session = SyncSession::connect(daemon.socket(), "test", deadline);
    if (!session) return session.error();
    std::string version;
    const auto asked = session->request(
        [](wire::Message::Builder m) { m.setStatus(); },
        [&](wire::Message::Reader m) { version = m.getStatusReply().getVersion().cStr(); },
        deadline);
    if (!asked) return asked.error();
    return version;
  }
};

TEST_F(SyncRequestTest, AsksAndIsAnswered) {
  EXPECT_EQ(version_of(soon()).value(), "fake");
}

TEST_F(SyncRequestTest, ADaemonThatDoesNotAnswerCostsTheDeadline) {
  daemon.with([](auto& s) { s.ignored = {Which::STATUS}; });
  EXPECT_EQ(version_of(in(milliseconds(30))).error().code, Errc::deadline);
}

TEST_F(SyncRequestTest, ADaemonThatHangsUpIsUnavailable) {
  daemon.with([](auto& s) { s.fatal = {Which::STATUS}; });
  EXPECT_EQ(version_of(soon()).error().code, Errc::unavailable);
}

TEST_F(SyncRequestTest, ARefusalIsPassedOn) {
  daemon.with([](auto& s) { s.refused[Which::STATUS] = make_error(Errc::no_space, "full"); });
  EXPECT_EQ(version_of(soon()).error(), make_error(Errc::no_space, "full"));
}

TEST_F(SyncRequestTest, AnotherVersionIsAClearError) {
  daemon.with([](auto& s) { s.version = 2; });
  EXPECT_EQ(version_of(soon()).error().code, Errc::version);
}

TEST_F(SyncRequestTest, AMissingSocketNamesTheMend) {
  const auto session = SyncSession::connect("/nonexistent/kvtierd.sock", "test", soon());
  ASSERT_FALSE(session);
  EXPECT_NE(session.error().message.find("is kvtierd running?"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::test
