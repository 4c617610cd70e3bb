// The C interface, from C programs of their own against a real kvtierd.
#include <gtest/gtest.h>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/run_program.h"

namespace kvtier::e2e {
namespace {

TEST(CInterface, EveryFunctionDoesWhatItsHeaderSays) {
  DaemonProcess daemon;
  daemon.start();
  const Outcome outcome = run(std::string(KVTIER_C_EVERY_CALL) + " " + daemon.socket());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(CInterface, TheExampleStoresPagesAndLoadsThem) {
  DaemonProcess daemon;
  daemon.start();
  const std::string command = std::string(KVTIER_C_EXAMPLE) + " " + daemon.socket();
  const Outcome first = run(command);
  EXPECT_EQ(first.exit_code, 0) << first.output;
  EXPECT_EQ(first.output, "stored 8 blocks, 0 were there\nloaded 8 blocks\n");
  EXPECT_EQ(run(command).output, "stored 0 blocks, 8 were there\nloaded 8 blocks\n");
}

TEST(CInterface, WithoutADaemonTheExampleSaysSo) {
  const Outcome outcome = run(std::string(KVTIER_C_EXAMPLE) + " /nowhere/kvtierd.sock");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("cannot connect to /nowhere"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace kvtier::e2e
