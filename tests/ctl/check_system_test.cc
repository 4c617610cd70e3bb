// Each way in which a host can be unfit, and the mend that is given for it.
#include "ctl/check/check_system.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

namespace kvtier::ctl {
namespace {

using State = Check::State;

// A host on which all is well, below a directory of the test's own.
class CheckSystemTest : public ::testing::Test {
 protected:
  CheckSystemTest() : root_(make_root()), host(root_) {
    write("/proc/self/limits", limits("unlimited", "1048576"));
    write("/proc/4321/limits", limits("unlimited", "1048576"));
    write("/proc/4321/cgroup", "0::/system.slice/kvtierd.service\n");
    write("/sys/fs/cgroup/system.slice/kvtierd.service/memory.max", "max\n");
    write("/proc/meminfo",
          "MemTotal:       67108864 kB\nMemFree:  1 kB\nMemAvailable:   33554432 kB\n"
          "Hugepagesize:       2048 kB\n");
    write("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
    write("/proc/sys/vm/nr_hugepages", "0\n");
    write("/proc/sys/kernel/io_uring_disabled", "0\n");
    write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
          "always within_size [advise] never deny force\n");
    write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    write("/sys/devices/system/clocksource/clocksource0/available_clocksource",
          "tsc hpet acpi_pm\n");
    write("/sys/dev/block/259:1/queue/rotational", "0\n");
    write("/sys/dev/block/259:1/queue/scheduler", "[none] mq-deadline\n");
    for (const char* node : {"nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps"})
      write(std::string("/dev/") + node, "");
    host.io_uring_error = host.memfd_error = [] { return 0; };
    host.gpus = [] { return Result<std::vector<GpuFacts>>(std::vector<GpuFacts>{{"H100", true}}); };
    host.disk = [this](const std::string&) { return disk; };
    host.socket = [this](const std::string&) { return socket; };
    host.user = [] { return std::string("ada"); };
    host.may_use = [this](const std::string& path) { return path != closed_node; };
    setup.running = true;
    setup.pid = 4321;
    setup.host_bytes = 8ULL << 30;
    setup.cuda = true;
    setup.disks = {{"/var/lib/kvtier", 100ULL << 30, 40ULL << 30}};
  }
  ~CheckSystemTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const auto file = root_ / path.substr(1);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  static std::string limits(const std::string& memlock, const std::string& files) {
    return "Limit                     Soft Limit           Hard Limit           Units\n"
           "Max open files            " +
           files +
           "   1048576              files\n"
           "Max locked memory         " +
           memlock + "   unlimited            bytes\n";
  }
  Checks all() {
    Checks checks;
    check_socket(checks, host, "/run/kvtier/kvtierd.sock", setup);
    check_memory(checks, host, setup);
    check_kernel(checks, host, setup);
    check_gpus(checks, host, setup);
    check_disks(checks, host, setup);
    return checks;
  }
  // Exactly one check is not ok: this one, so, with these words in what was seen and in the mend.
  void expect_only(const std::string& name, State state, const std::string& seen,
                   const std::string& mend) {
    int found = 0;
    for (const Check& check : all()) {
      if (check.state == State::ok) {
        EXPECT_TRUE(check.mend.empty()) << check.check;
        continue;
      }
      ++found;
      EXPECT_EQ(check.check, name) << check.seen;
      EXPECT_EQ(check.state, state) << check.seen;
      EXPECT_NE(check.seen.find(seen), std::string::npos) << check.seen;
      EXPECT_NE(check.mend.find(mend), std::string::npos) << check.mend;
    }
    EXPECT_EQ(found, 1);
  }

 private:
  static std::filesystem::path make_root() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-host-XXXXXX").string();
    return ::mkdtemp(pattern.data());
  }

 protected:
  const std::filesystem::path root_;
  Host host;
  ctl::Setup setup;
  DiskFacts good_disk() const { return {"ext4", 200ULL << 30, 0, "259:1"}; }
  Result<DiskFacts> disk = good_disk();
  SocketFacts socket{true, 0660, "kvtier", 0};
  std::string closed_node;
};

TEST_F(CheckSystemTest, a_fit_host_has_nothing_to_mend) {
  for (const Check& check : all()) {
    EXPECT_EQ(check.state, State::ok) << check.check << ": " << check.seen;
    EXPECT_EQ(check.mend, "");
  }
}

TEST_F(CheckSystemTest, locked_memory_of_the_daemon_below_its_tiers) {
  write("/proc/4321/limits", limits("8388608", "1048576"));
  expect_only("memlock", State::warning, "kvtierd's limit is 8.00 MiB", "LimitMEMLOCK=infinity");
}

TEST_F(CheckSystemTest, few_open_files) {
  write("/proc/4321/limits", limits("unlimited", "1024"));
  expect_only("open files", State::warning, "1024", "LimitNOFILE");
}

TEST_F(CheckSystemTest, tiers_larger_than_the_hosts_memory_fail_and_larger_than_what_is_free_warn) {
  setup.host_bytes = 80ULL << 30;
  expect_only("memory", State::failed, "80.00 GiB", "[host] capacity");
  setup.host_bytes = 40ULL << 30;
  expect_only("memory", State::warning, "40.00 GiB", "[host] capacity");
  setup.host_taken = 20ULL << 30;  // half of it is there already
  for (const Check& check : all()) EXPECT_EQ(check.state, State::ok) << check.seen;
}

TEST_F(CheckSystemTest, a_control_group_smaller_than_the_tiers) {
  write("/sys/fs/cgroup/system.slice/kvtierd.service/memory.max", "1073741824\n");
  expect_only("control group", State::failed, "1.00 GiB", "MemoryMax=infinity");
}

TEST_F(CheckSystemTest, huge_pages_that_are_off_or_set_aside_for_others) {
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  expect_only("transparent huge pages", State::warning, "never",
              "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
  write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n");
  expect_only("huge pages of shared memory", State::warning, "half their rate",
              "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "[always] within_size advise never deny force\n");
  write("/proc/sys/vm/nr_hugepages", "4096\n");
  expect_only("explicit huge pages", State::warning, "8.00 GiB", "vm.nr_hugepages=0");
}

TEST_F(CheckSystemTest, swap_that_could_take_the_cache) {
  write("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2\tpartition\t8\t0\t-2\n");
  expect_only("swap", State::warning, "/dev/sda2", "MemorySwapMax=0");
}

TEST_F(CheckSystemTest, io_uring_that_is_turned_off_filtered_or_not_there) {
  host.io_uring_error = [] { return EPERM; };
  expect_only("io_uring", State::warning, "seccomp", "io_uring_setup");
  write("/proc/sys/kernel/io_uring_disabled", "2\n");
  expect_only("io_uring", State::warning, "io_uring_disabled is 2",
              "sysctl -w kernel.io_uring_disabled=0");
  write("/proc/sys/kernel/io_uring_disabled", "0\n");
  host.io_uring_error = [] { return ENOSYS; };
  expect_only("io_uring", State::warning, "this kernel has none", "CONFIG_IO_URING");
}

TEST_F(CheckSystemTest, shared_memory_that_cannot_be_made) {
  host.memfd_error = [] { return EACCES; };
  expect_only("memfd", State::failed, "Permission denied", "seccomp");
  write("/proc/sys/vm/memfd_noexec", "2\n");
  expect_only("memfd", State::failed, "memfd_noexec is 2", "sysctl -w vm.memfd_noexec=1");
}

TEST_F(CheckSystemTest, a_clock_that_is_a_device) {
  write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  expect_only("clock", State::warning, "hpet", "echo tsc >");
  write("/sys/devices/system/clocksource/clocksource0/available_clocksource", "hpet acpi_pm\n");
  expect_only("clock", State::warning, "hpet", "tsc=reliable");
}

TEST_F(CheckSystemTest, a_socket_that_the_caller_may_not_use_or_nobody_listens_on) {
  socket.connect_error = EACCES;
  expect_only("socket", State::failed, "ada may not use", "usermod -aG kvtier ada");
  socket.connect_error = ENOENT;
  setup.running = false;
  setup.pid = 0;
  expect_only("socket", State::warning, "No such file", "systemctl start kvtierd");
}

TEST_F(CheckSystemTest, gpus_without_device_files_rights_driver_or_shared_memory) {
  closed_node = "/dev/nvidia-uvm";
  expect_only("GPU device files", State::failed, "/dev/nvidia-uvm", "chmod 0666 /dev/nvidia-uvm");
  closed_node.clear();
  host.gpus = [] {
    return Result<std::vector<GpuFacts>>(make_error(Errc::unavailable, "no driver"));
  };
  expect_only("GPU driver", State::failed, "no driver", "modprobe nvidia");
  host.gpus = [] { return Result<std::vector<GpuFacts>>(std::vector<GpuFacts>{{"vGPU", false}}); };
  expect_only("GPU vGPU", State::failed, "cannot be shared", "[device] capacity = 0");
  std::filesystem::remove_all(root_ / "dev");
  host.gpus = [] { return Result<std::vector<GpuFacts>>(std::vector<GpuFacts>{}); };
  expect_only("GPU device files", State::failed, "no /dev/nvidia", "nvidia-modprobe");
  setup.cuda = false;
  for (const Check& check : all()) EXPECT_EQ(check.state, State::ok) << check.seen;
}

TEST_F(CheckSystemTest, disks_that_are_missing_full_of_the_wrong_kind_or_slow) {
  disk = make_error(Errc::not_found, "No such file or directory");
  expect_only("disk /var/lib/kvtier", State::failed, "No such file", "install -d");
  disk = good_disk();
  disk->free_bytes = 10ULL << 30;
  expect_only("disk /var/lib/kvtier: room", State::failed, "10.00 GiB free, 60.00 GiB",
              "at most 46080MiB");
  disk = good_disk();
  disk->file_system = "tmpfs";
  expect_only("disk /var/lib/kvtier: file system", State::failed, "memory, not a disk", "mkfs.xfs");
  disk = good_disk();
  disk->direct_io_error = EINVAL;
  expect_only("disk /var/lib/kvtier: file system", State::failed, "O_DIRECT does not work",
              "mkfs.xfs");
  disk = good_disk();
  disk->file_system = "btrfs";
  expect_only("disk /var/lib/kvtier: file system", State::warning, "tested on ext4", "mkfs.xfs");
  disk = good_disk();
  write("/sys/dev/block/259:1/queue/rotational", "1\n");
  expect_only("disk /var/lib/kvtier: drive", State::warning, "rotates", "NVMe");
  write("/sys/dev/block/259:1/queue/rotational", "0\n");
  write("/sys/dev/block/259:1/queue/scheduler", "none [bfq]\n");
  expect_only("disk /var/lib/kvtier: scheduler", State::warning, "bfq", "echo none >");
}

TEST(CheckSetupTest, a_configuration_says_what_the_daemon_will_take) {
  const auto setup = setup_from_config(
      "[host]\ncapacity = \"8GiB\"\n[device]\ncapacity = 1048576\nbackend = \"memory\"\n"
      "[disk]\ndirectories = [\"/a\", \"/b\"]\ncapacity = \"1TiB\"\n");
  ASSERT_TRUE(setup);
  EXPECT_EQ(setup->host_bytes, 8ULL << 30);
  EXPECT_EQ(setup->device_bytes, 1ULL << 20);
  EXPECT_FALSE(setup->cuda);
  ASSERT_EQ(setup->disks.size(), 2U);
  EXPECT_EQ(setup->disks[1].directory, "/b");
  EXPECT_EQ(setup->disks[1].cap_bytes, 1ULL << 40);
  EXPECT_EQ(setup_from_config("")->host_bytes, 4ULL << 30);
  EXPECT_FALSE(setup_from_config("[host"));
  EXPECT_FALSE(setup_from_config("[host]\ncapacity = \"much\"\n"));
}

// The real host's answers, whatever they are, have a state and, where they are not ok, a mend.
TEST(CheckSetupTest, this_host_gets_an_answer_to_every_question) {
  CheckOptions options;
  options.target.socket = "/nonexistent/kvtierd.sock";
  options.config = "/nonexistent/kvtierd.toml";
  const Json checks = check_system(options);
  EXPECT_GE(checks["checks"].size(), 10U);
  for (const Json& check : checks["checks"]) {
    EXPECT_FALSE(check["seen"].get<std::string>().empty()) << check.dump();
    EXPECT_EQ(check["mend"].get<std::string>().empty(), check["state"] == "ok") << check.dump();
  }
}

}  // namespace
}  // namespace kvtier::ctl
