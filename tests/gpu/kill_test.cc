// Engine processes on one GPU, killed in the middle of writing back while another reads.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <sstream>
#include <thread>

#include "core/base/fd.h"
#include "kvtier/record_layout.h"
#include "tests/e2e/daemon_process.h"
#include "tests/gpu/records_on_gpu.h"

extern char** environ;

namespace kvtier::gpu_test {
namespace {

class EngineProcess {
 public:
  explicit EngineProcess(std::vector<std::string> arguments) {
    const char* elsewhere = std::getenv("KVTIER_TEST_ENGINE");
    std::string program = elsewhere != nullptr ? elsewhere : KVTIER_ENGINE_PROCESS;
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int in[2], out[2];
    KVTIER_CHECK(::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    KVTIER_CHECK(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ) ==
                 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_.reset(in[1]);
    out_.reset(out[0]);
  }
  ~EngineProcess() {
    if (pid_ > 0) kill();
  }
  EngineProcess(const EngineProcess&) = delete;

  // The next line that it says; empty at its end.
  std::string line() {
    std::string text;
    char c = 0;
    while (::read(out_.get(), &c, 1) == 1 && c != '\n') text += c;
    return text;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Ends its input and waits. The exit status as waitpid() gives it.
  int end() {
    in_.reset();
    int status = -1;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd in_, out_;
};

TEST(GpuKillTest, engines_killed_in_the_middle_of_writing_leave_nothing_wrong_and_nothing_taken) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no GPU here";
  constexpr std::uint32_t kKills = 50;
  constexpr std::uint32_t kAtATime = 5;
  e2e::DaemonOptions options;
  options.device_backend = "cuda";
  options.device_capacity = "256MiB";
  options.host_capacity = "1GiB";
  options.extent_size = "64MiB";
  options.disk_capacity = "";
  e2e::DaemonProcess daemon(options);
  daemon.start();

  std::mt19937 random(1);
  EngineProcess reader({"read", daemon.socket(), std::to_string(kKills)});
  ASSERT_EQ(reader.line(), "started");
  for (std::uint32_t seed = 0; seed < kKills; seed += kAtATime) {
    std::vector<std::unique_ptr<EngineProcess>> writers;
    for (std::uint32_t i = 0; i < kAtATime; ++i) {
      writers.push_back(std::make_unique<EngineProcess>(
          std::vector<std::string>{"write", daemon.socket(), std::to_string(seed + i)}));
    }
    for (const auto& writer : writers) {
      ASSERT_EQ(writer->line(), "started");
      // It writes for 10 ms or so.
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
      writer->kill();
    }
  }
  reader.end();  // of its input, and so of it
  std::istringstream said(reader.line());
  std::string word;
  std::size_t right = 0, wrong = 0, device = 0;
  said >> word >> right >> word >> wrong >> word >> device;
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(right, 0U);
  EXPECT_GT(device, 0U);
  std::printf("read %zu blocks, %zu of them from HBM, %zu wrong\n", right, device, wrong);

  const Deadline deadline = soon();
  auto status = daemon.status();
  while (status.reserved + status.quarantined != 0 && Clock::now() < deadline)
    status = daemon.status();
  EXPECT_EQ(status.reserved, 0U);
  EXPECT_EQ(status.quarantined, 0U);
  EXPECT_EQ(status.leases, 0U);
  const std::uint64_t record = RecordLayout::of(test_namespace()).record_bytes;
  EXPECT_GT(status.blocks[index_of(Tier::device)], 0U);
  EXPECT_EQ(status.gpu_used_bytes, status.blocks[index_of(Tier::device)] * record);
  EXPECT_EQ(status.gpu_reserved_bytes, 0U);

  // A prompt that was written whole, for a process that has never been here.
  {
    EngineProcess writer({"write", daemon.socket(), "900"});
    ASSERT_EQ(writer.line(), "started");
    while (daemon.status().blocks[index_of(Tier::device)] <
               status.blocks[index_of(Tier::device)] + 64 &&
           daemon.status().evictions[index_of(Tier::device)] == status.evictions[0] &&
           Clock::now() < deadline) {
    }
    writer.kill();
  }
  EngineProcess fresh({"once", daemon.socket(), "900000", "16"});
  const std::string hit = fresh.line();
  EXPECT_EQ(hit.find("right 16 device 16 "), 0U) << hit;
  std::printf("a new process: %s\n", hit.c_str());
  EXPECT_EQ(fresh.end(), 0);
}

}  // namespace
}  // namespace kvtier::gpu_test
