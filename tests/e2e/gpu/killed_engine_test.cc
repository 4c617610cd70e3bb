#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/gpu/gpu_engine_under_test.h"

extern char** environ;

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;

constexpr int kKills = 50;
constexpr std::uint64_t kPromptsChecked = 6;  // of each victim

class Victim {
 public:
  Victim(const std::string& socket, std::uint64_t number) {
    int pipe[2];
    KVTIER_CHECK(::pipe(pipe) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
    posix_spawn_file_actions_addclose(&actions, pipe[0]);
    const char* given = std::getenv("KVTIER_TEST_VICTIM");
    std::string program = given != nullptr ? given : KVTIER_VICTIM;
    std::string where = socket;
    std::string which = std::to_string(number);
    char* const arguments[] = {program.data(), where.data(), which.data(), nullptr};
    KVTIER_CHECK(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[1]);
    char said[8];
    ready_ = ::read(pipe[0], said, sizeof said) > 0;
    ::close(pipe[0]);
  }
  bool ready() const noexcept { return ready_; }
  void kill() {
    KVTIER_CHECK(::kill(pid_, SIGKILL) == 0);
    int status = 0;
    KVTIER_CHECK(::waitpid(pid_, &status, 0) == pid_);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it had ended by itself";
  }

 private:
  pid_t pid_ = -1;
  bool ready_ = false;
};

// Asks for the same prompts over and over beside the victims.
class Reader {
 public:
  Reader(GpuEngineUnderTest& engine, const std::vector<std::vector<Token>>& prompts)
      : engine_(engine), prompts_(prompts) {
    for (const auto& prompt : prompts_) expected_.push_back(engine_.answer(prompt, 4).tokens);
    engine_.flush();
    // Their restored answers; a computed one may round otherwise.
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      expected_[i] = engine_.answer(prompts_[i], 4).tokens;
    }
    thread_ = std::thread([this] { run(); });
  }
  ~Reader() {
    stop_ = true;
    thread_.join();
  }
  int wrong() const noexcept { return wrong_; }
  int answers() const noexcept { return answers_; }

 private:
  void run() {
    for (std::size_t i = 0; !stop_; i = (i + 1) % prompts_.size()) {
      const auto result = engine_.answer(prompts_[i], 4);
      if (result.reused_tokens > 0 && result.tokens != expected_[i]) ++wrong_;
      ++answers_;
    }
  }

  GpuEngineUnderTest& engine_;
  const std::vector<std::vector<Token>>& prompts_;
  std::vector<std::vector<Token>> expected_;
  std::atomic<bool> stop_{false};
  std::atomic<int> wrong_{0}, answers_{0};
  std::thread thread_;
};

// Until what a dead client had reserved is free again.
void wait_until_released(const DaemonProcess& daemon, std::uint64_t reserved_most) {
  const auto give_up = Clock::now() + 20s;
  DaemonStatus status = daemon.status();
  while ((status.quarantined != 0 || status.reserved > reserved_most) && Clock::now() < give_up) {
    ::usleep(2000);
    status = daemon.status();
  }
  EXPECT_EQ(status.quarantined, 0U);
  EXPECT_LE(status.reserved, reserved_most);
}

class GpuKilledEngine : public engine::test::OnGpu {};

TEST_F(GpuKilledEngine, leaves_no_wrong_byte_and_no_room_taken) {
  const auto model = engine::test::load_checkpoint(engine::test::kBundled[0]);
  ASSERT_NE(model, nullptr);
  const std::uint32_t vocab = model->config.vocab_size;
  DaemonProcess daemon({.device_capacity = "1GiB",
                        .device_backend = "cuda",
                        .host_capacity = "2GiB",
                        .extent_size = "64MiB",
                        .disk_capacity = ""});
  daemon.start();
  std::vector<std::vector<Token>> prompts;
  for (std::size_t i = 0; i < 8; ++i) prompts.push_back(text_tokens(i * 300, 700));
  std::mt19937_64 random(17);
  GpuEngineUnderTest reference(*model, "");
  {
    GpuEngineUnderTest read_by(*model, daemon.socket());
    Reader reader(read_by, prompts);
    const std::uint64_t reserved_most = daemon.status().reserved + 512;
    for (std::uint64_t number = 0; number < kKills; ++number) {
      Victim victim(daemon.socket(), number);
      ASSERT_TRUE(victim.ready()) << number;
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 15'000));
      victim.kill();
      wait_until_released(daemon, reserved_most);
    }
    EXPECT_EQ(reader.wrong(), 0);
    EXPECT_GT(reader.answers(), kKills);
  }

  GpuEngineUnderTest checker(*model, daemon.socket());
  EXPECT_GT(checker.answer(prompts[0], 4).reused_by_tier[index_of(Tier::device)], 0U)
      << "a new engine does not hit in the device tier at once";
  std::uint64_t compared = 0;
  std::uint64_t wrong = 0;
  for (std::uint64_t victim = 0; victim < kKills; ++victim) {
    for (std::uint64_t number = 0; number < kPromptsChecked; ++number) {
      const auto prompt = victim_prompt(victim, number, vocab);
      const auto cached = checker.cached_payloads(prompt);
      if (cached.empty()) continue;
      const auto computed = reference.computed_payloads(prompt);
      ASSERT_LE(cached.size(), computed.size());
      compared += cached.size();
      if (!std::equal(cached.begin(), cached.end(), computed.begin())) ++wrong;
    }
  }
  std::printf("compared %llu bytes that killed engines had written\n",
              static_cast<unsigned long long>(compared));
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(compared, 10'000'000U);
}

TEST_F(GpuKilledEngine, leaves_only_sealed_blocks_once_every_client_is_gone) {
  const auto model = engine::test::load_checkpoint(engine::test::kBundled[0]);
  ASSERT_NE(model, nullptr);
  const std::uint64_t record = RecordLayout::of(model->ns(kGpuFormat)).record_bytes;
  DaemonProcess daemon({.device_capacity = "256MiB",
                        .device_backend = "cuda",
                        .host_capacity = "256MiB",
                        .extent_size = "64MiB",
                        .disk_capacity = ""});
  daemon.start();
  for (std::uint64_t number = 0; number < 3; ++number) {
    Victim victim(daemon.socket(), number);
    ASSERT_TRUE(victim.ready());
    std::this_thread::sleep_for(5ms);
    victim.kill();
    wait_until_released(daemon, 0);
    const DaemonStatus status = daemon.status();
    for (const Tier tier : {Tier::device, Tier::host}) {
      EXPECT_GT(status.blocks[index_of(tier)], 0U) << name(tier);
      EXPECT_EQ(status.used_bytes[index_of(tier)], status.blocks[index_of(tier)] * record);
    }
  }
}

}  // namespace
}  // namespace kvtier::e2e
