// A running daemon, and clients of it.
#pragma once

#include <gtest/gtest.h>

#include "tests/daemon/support/kvtierd_process.h"
#include "tests/daemon/support/wire_client.h"

namespace kvtier::daemon::testing {

inline std::string small_config(const Scratch& scratch, const std::string& more = "") {
  return "socket = '" + (scratch / "s").string() + "'\n" + more +
         "\n[index]\nblocks_max = 1024\n"
         "[host]\ncapacity = '4MiB'\nextent_size = '1MiB'\nhuge_pages = false\n";
}
inline std::string disk_config(const std::string& directory) {
  return "[disk]\ndirectory = '" + directory + "'\ncapacity = '64MiB'\nsegment_size = '1MiB'\n";
}

class ServerTest : public ::testing::Test {
 protected:
  explicit ServerTest(const std::string& more = "")
      : daemon(scratch, small_config(scratch, more)) {}

  std::string socket() const { return (scratch / "s").string(); }
  WireClient client() const { return WireClient::greeted(socket()); }

  Scratch scratch;
  Kvtierd daemon;
  const Namespace ns = small_namespace("m");
};

}  // namespace kvtier::daemon::testing
