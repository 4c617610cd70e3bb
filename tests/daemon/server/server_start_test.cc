// How kvtierd starts, refuses to start, and stops.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>

#include "core/base/cuda_driver.h"
#include "daemon/config/config.h"
#include "daemon/peers/process_watch.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

class StartTest : public ::testing::Test {
 protected:
  // kvtierd with this configuration ends at once, saying `part` on stderr.
  void expect_refused(const std::string& config, int code, const std::string& part) {
    Kvtierd daemon(scratch, config);
    const int status = daemon.wait();
    EXPECT_TRUE(WIFEXITED(status)) << daemon.output();
    EXPECT_EQ(WEXITSTATUS(status), code) << daemon.output();
    EXPECT_NE(daemon.output().find(part), std::string::npos) << daemon.output();
  }
  static void expect_stopped(Kvtierd& daemon) {
    const int status = daemon.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << daemon.output();
  }

  Scratch scratch;
  const std::filesystem::path socket = scratch / "s";
};

TEST_F(StartTest, sigterm_and_sigint_end_it_with_0_and_remove_the_socket) {
  for (const int number : {SIGTERM, SIGINT}) {
    Kvtierd daemon(scratch, small_config(scratch));
    WireClient client = WireClient::greeted(socket.string());
    daemon.signal(number);
    expect_stopped(daemon);
    EXPECT_TRUE(client.is_closed());
    EXPECT_FALSE(std::filesystem::exists(socket));
  }
}

TEST_F(StartTest, a_bad_configuration_ends_it_with_2_and_says_where) {
  expect_refused("\n[host]\nsize = 1\n", 2, ":3:1: unknown key 'size' in [host]");
}

TEST_F(StartTest, a_device_tier_on_gpus_without_them_is_refused_with_the_setting_and_the_mend) {
  if (CudaDriver::get()) GTEST_SKIP() << "this host has a CUDA driver";
  const std::string config =
      small_config(scratch) + "[device]\nbackend = 'cuda'\ncapacity = '1MiB'\n";
  expect_refused(config, 1, "[device] backend = \"cuda\", gpus: no CUDA driver here");
  expect_refused(config, 1, "install the NVIDIA driver");
}

TEST_F(StartTest, a_device_tier_of_no_bytes_needs_no_gpu) {
  Kvtierd daemon(scratch, small_config(scratch) + "[device]\nbackend = 'cuda'\n");
  EXPECT_TRUE(WireClient::greeted(socket.string()).status());
}

TEST_F(StartTest, a_socket_in_use_is_refused_and_left_alone) {
  Kvtierd first(scratch, small_config(scratch));
  WireClient client = WireClient::greeted(socket.string());
  expect_refused(small_config(scratch), 1, "is in use");
  EXPECT_TRUE(client.status());
  EXPECT_TRUE(WireClient::greeted(socket.string()).status());
}

TEST_F(StartTest, a_socket_left_over_from_a_killed_daemon_is_taken_over) {
  {
    Kvtierd killed(scratch, small_config(scratch));
    WireClient::greeted(socket.string());
    killed.signal(SIGKILL);
    killed.wait();
  }
  ASSERT_TRUE(std::filesystem::exists(socket));
  Kvtierd daemon(scratch, small_config(scratch));
  EXPECT_TRUE(WireClient::greeted(socket.string()).status());
}

TEST_F(StartTest, a_file_in_the_sockets_place_is_refused_and_left_alone) {
  std::ofstream(socket) << "precious";
  expect_refused(small_config(scratch), 1, "is not a socket");
  EXPECT_EQ(std::filesystem::file_size(socket), 8U);
}

TEST_F(StartTest, a_socket_path_that_is_too_long_is_a_bad_configuration) {
  expect_refused("socket = '/tmp/" + std::string(120, 'x') + "'\n", 2, "too long");
}

TEST_F(StartTest, a_socket_in_no_directory_names_the_path) {
  expect_refused("socket = '/nowhere/s'\n", 1, "cannot listen on /nowhere/s");
}

TEST_F(StartTest, the_socket_has_the_mode_of_the_configuration) {
  Kvtierd daemon(scratch, small_config(scratch, "socket_mode = '0600'"));
  WireClient::greeted(socket.string());
  EXPECT_EQ(std::filesystem::status(socket).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(StartTest, a_disk_directory_that_cannot_be_made_is_named) {
  expect_refused(small_config(scratch) + disk_config("/proc/kvtier"), 1, "/proc/kvtier");
}

TEST_F(StartTest, a_disk_directory_that_is_a_file_is_named_and_left_alone) {
  std::ofstream(scratch / "disk") << "precious";
  expect_refused(small_config(scratch) + disk_config((scratch / "disk").string()), 1,
                 (scratch / "disk").string());
  EXPECT_EQ(std::filesystem::file_size(scratch / "disk"), 8U);
}

TEST_F(StartTest, a_disk_directory_of_a_running_daemon_is_refused) {
  const std::string disk = disk_config((scratch / "disk").string());
  Kvtierd first(scratch, small_config(scratch) + disk);
  WireClient::greeted(socket.string());
  expect_refused("socket = '" + (scratch / "other").string() + "'\n" + disk, 1,
                 (scratch / "disk").string());
}

TEST_F(StartTest, a_disk_too_small_for_one_segment_is_a_bad_configuration) {
  expect_refused(small_config(scratch) + "[disk]\ndirectory = '" + (scratch / "disk").string() +
                     "'\ncapacity = '1MiB'\n",
                 2, "too small");
}

// A limit on descriptors that leaves none, for as long as it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(StartTest, without_descriptors_it_says_what_ran_out) {
  std::ofstream(scratch / "config.toml") << small_config(scratch);
  std::string process, config;
  {
    const NoDescriptors none;
    process = start_time_of(::getpid()).error().message;
    config = load_config(scratch / "config.toml").error().message;
  }
  EXPECT_NE(process.find("Too many open files"), std::string::npos) << process;
  EXPECT_NE(config.find("Too many open files"), std::string::npos) << config;
}

TEST_F(StartTest, whatever_the_umask_nobody_else_may_read_the_disk_tier) {
  const std::string config = small_config(scratch) + disk_config((scratch / "disk").string());
  const auto open_to_others = [&] {
    std::string found;
    using std::filesystem::perms;
    for (const auto& file : std::filesystem::recursive_directory_iterator(scratch / "disk")) {
      const auto others = file.status().permissions() & (perms::group_all | perms::others_all);
      if (others != perms::none) found += file.path().string() + "\n";
    }
    return found;
  };
  for (const mode_t mask : {0000U, 0022U}) {
    Kvtierd daemon(scratch, config, "", nullptr, [mask] { ::umask(mask); });
    WireClient client = WireClient::greeted(socket.string());
    client.open(small_namespace("m"));
    ASSERT_TRUE(client.flush());
    EXPECT_EQ(open_to_others(), "") << "umask " << mask;
    daemon.signal(SIGTERM);
    expect_stopped(daemon);
    // What an earlier version left open.
    std::filesystem::permissions(scratch / "disk" / "index", std::filesystem::perms::all);
    std::filesystem::permissions(scratch / "disk" / "segments", std::filesystem::perms::all);
  }
}

TEST_F(StartTest, check_config_says_that_a_good_one_can_be_used) {
  Kvtierd daemon(scratch, small_config(scratch), "--check-config");
  expect_stopped(daemon);
  EXPECT_NE(daemon.output().find(" can be used\n"), std::string::npos) << daemon.output();
}

TEST_F(StartTest, what_print_config_prints_is_a_configuration) {
  Kvtierd daemon(scratch, small_config(scratch), "--print-config");
  expect_stopped(daemon);
  Kvtierd again(scratch, daemon.output(), "--print-config");
  expect_stopped(again);
  EXPECT_EQ(again.output(), daemon.output());
}

}  // namespace
}  // namespace kvtier::daemon::testing
