#include "engine_adapter/reference/model/score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine_adapter/reference/model/weights/loaded_model.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

// A tokenizer whose token i is the byte i; only the ids below the model's vocab_size are used.
Tokenizer byte_tokenizer() {
  auto tokenizer = Tokenizer::parse(as_read(tokenizer_json({})), "tokenizer.json");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

TEST(Score, AddsUpTheBitsOfEveryTokenButTheFirstOfEachWindow) {
  const auto model = TestModel::make_small();
  ASSERT_NE(model, nullptr);
  const std::size_t vocab = model->config.vocab_size;
  const auto tokens = random_tokens(50, model->config.vocab_size, 2);
  double bits = 0;
  for (const std::size_t start : {0U, 20U, 40U}) {
    const auto window = std::span(tokens).subspan(start, std::min<std::size_t>(20, 50 - start));
    const auto rows = static_cast<std::uint32_t>(window.size());
    const auto logits = logits_of(*model, StorageFormat::f32, window, 64, rows);
    for (std::size_t row = 0; row + 1 < rows; ++row) {
      double total = 0;
      for (std::size_t i = 0; i < vocab; ++i) total += std::exp(logits[row * vocab + i]);
      bits -= std::log2(std::exp(logits[row * vocab + window[row + 1]]) / total);
    }
  }
  TestEngine engine(*model, StorageFormat::f32, 7);
  const auto scored = score(engine.llama, *engine.pool, byte_tokenizer(), tokens, 20);
  ASSERT_TRUE(scored);
  EXPECT_EQ(scored->tokens, 47U);
  EXPECT_EQ(scored->bytes, 47U);
  EXPECT_EQ(scored->windows, 3U);
  EXPECT_NEAR(scored->bits, bits, 1e-3);
  EXPECT_NEAR(scored->bits_per_byte(), bits / 47, 1e-4);
  EXPECT_TRUE(scored->parts.empty());
  const auto in_parts = score(engine.llama, *engine.pool, byte_tokenizer(), tokens, 20, 10);
  ASSERT_TRUE(in_parts);
  EXPECT_EQ(in_parts->parts.size(), 4U);
  const auto first =
      score(engine.llama, *engine.pool, byte_tokenizer(), std::span(tokens).first(11), 20);
  ASSERT_TRUE(first);
  EXPECT_NEAR(in_parts->parts[0], first->bits_per_byte(), 1e-9);
}

TEST(Score, RefusesATextTooShortToScore) {
  const auto model = TestModel::make_small();
  ASSERT_NE(model, nullptr);
  TestEngine engine(*model, StorageFormat::f32, 7);
  EXPECT_FALSE(score(engine.llama, *engine.pool, byte_tokenizer(), {}, 20));
  EXPECT_FALSE(score(engine.llama, *engine.pool, byte_tokenizer(), std::vector<Token>{1}, 20));
}

TEST(LoadedModel, IsAnotherModelOnceAWeightOrTheConfigChanges) {
  const std::filesystem::path bundled = KVTIER_SOURCE_DIR "/engine_adapter/models/docs-4m";
  const TemporaryDirectory folder;
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"}) {
    ASSERT_TRUE(std::filesystem::exists(bundled / file)) << file;
    std::filesystem::copy(bundled / file, folder / file);
  }
  const auto digest = [](const std::filesystem::path& path) {
    const auto loaded = LoadedModel::load(path);
    EXPECT_TRUE(loaded) << loaded.error().message;
    const std::string revision = loaded ? (*loaded)->revision : "";
    return revision.substr(revision.find('@') + 1);
  };
  const std::string original = digest(bundled);
  EXPECT_EQ(original.size(), 32U);
  EXPECT_EQ(digest(folder.path()), original);

  std::string weights = read_file(folder / "model.safetensors").value();
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_file(folder / "model.safetensors", weights);
  const std::string other_weights = digest(folder.path());
  EXPECT_NE(other_weights, original);

  Json config = read_json(folder / "config.json").value();
  config["rms_norm_eps"] = 1e-6;
  write_file(folder / "config.json", config.dump());
  EXPECT_NE(digest(folder.path()), other_weights);
}

}  // namespace
}  // namespace kvtier::engine::test
