#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/fd.h"
#include "engine_adapter/reference/model/instance.h"
#include "engine_adapter/reference/model/weights/loaded_model.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"

namespace kvtier::e2e {
namespace {

using engine::test::small_config;
using engine::test::write_file;

std::string weights(std::uint64_t seed) {
  const auto config =
      engine::parse_model_config(engine::test::as_read(small_config()), "small").value();
  return engine::test::small_weights(config, seed);
}

// An engine as kvtier-engine makes it of a directory, with or without a daemon.
class LoadedEngine {
 public:
  LoadedEngine(const std::filesystem::path& folder, const std::string& socket)
      : loaded_(engine::LoadedModel::load(folder).value()),
        instance_(engine::Instance::make(*loaded_, {.device = {}, .pool_tokens = 1024}).value()) {
    if (!socket.empty()) {
      client_ = Client::start({.socket = socket, .name = "test", .slots_ahead = 16}).value();
      cache_ = client_->open(instance_.ns).value();
      flush();
    }
    generator_ =
        std::make_unique<engine::Generator>(*instance_.model, *instance_.pool, id_of(instance_.ns),
                                            cache_.get(), engine::LoadPolicy::always_load);
  }

  engine::GenerateResult answer(std::uint64_t prompt) {
    engine::GenerateRequest request;
    request.prompt = engine::test::random_tokens(200, loaded_->config.vocab_size, prompt);
    request.tokens_max = 24;
    auto result = generator_->generate(request).value();
    if (client_) flush();
    return result;
  }

 private:
  void flush() {
    const auto give_up = Clock::now() + std::chrono::seconds(30);
    KVTIER_CHECK(client_->wait_connected(give_up).has_value());
    KVTIER_CHECK(client_->flush(give_up).has_value());
  }

  std::unique_ptr<engine::LoadedModel> loaded_;
  engine::Instance instance_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Cache> cache_;
  std::unique_ptr<engine::Generator> generator_;
};

TEST(ChangedWeights, overwritten_under_a_running_engine_put_no_wrong_block_into_its_namespace) {
  const engine::test::TemporaryDirectory folder;
  const auto file = folder / "model.safetensors";
  write_file(folder / "config.json", small_config().dump());
  write_file(folder / "tokenizer.json", engine::test::tokenizer_json({}).dump());
  write_file(file, weights(1));
  const auto overwrite = [&file](std::uint64_t seed) {
    const std::string bytes = weights(seed);
    const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
    KVTIER_CHECK(::pwrite(fd.get(), bytes.data(), bytes.size(), 0) ==
                 static_cast<ssize_t>(bytes.size()));
  };
  DaemonProcess daemon;
  daemon.start();
  const std::vector<std::uint64_t> prompts{1, 2, 3};
  std::vector<std::vector<Token>> right;
  LoadedEngine alone(folder.path(), "");
  for (const auto prompt : prompts) right.push_back(alone.answer(prompt).tokens);

  LoadedEngine running(folder.path(), daemon.socket());
  EXPECT_EQ(running.answer(1).tokens, right[0]);
  overwrite(2);
  EXPECT_EQ(running.answer(2).tokens, right[1]);
  overwrite(1);
  EXPECT_EQ(running.answer(3).tokens, right[2]);

  LoadedEngine next(folder.path(), daemon.socket());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto result = next.answer(prompts[i]);
    EXPECT_EQ(result.tokens, right[i]) << "prompt " << prompts[i];
    EXPECT_GT(result.reused_tokens, 0U);
  }
}

}  // namespace
}  // namespace kvtier::e2e
