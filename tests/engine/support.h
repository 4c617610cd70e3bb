// Helpers of the engine's tests: temporary directories, safetensors files, small random models.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/safetensors.h"
#include "engine_adapter/reference/model/llama.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/model/weights/model_config.h"
#include "kvtier/namespace.h"

namespace kvtier::engine::test {

std::filesystem::path source_directory();

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, std::string_view bytes);

struct TensorData {
  std::string name;
  std::string dtype;  // "F32", ...
  std::vector<std::uint64_t> shape;
  std::string bytes;
};
// A correct safetensors file.
std::string safetensors_file(const std::vector<TensorData>& tensors);
// 8 bytes of length, `header`, `data`.
std::string safetensors_bytes(std::string_view header, std::string_view data);

// As read from a file, where 7 is an unsigned number; a C++ 7 in a Json is a signed one.
inline Json as_read(const Json& json) {
  return Json::parse(json.dump());
}
// tokenizer.json, byte-level: token i is the byte i, and 256, 257, ... are `merges` ("a b").
Json tokenizer_json(const std::vector<std::string>& merges);

// config.json of a model small enough to run thousands of tokens in a test.
Json small_config();
// Random weights for it, F32, the same for the same seed.
std::string small_weights(const ModelConfig& config, std::uint64_t seed);

std::vector<Token> random_tokens(std::size_t count, std::uint32_t vocab_size, std::uint64_t seed);

// A model with everything it refers to.
struct TestModel {
  ModelConfig config;
  SafeTensors tensors;
  LlamaWeights weights;

  // Aborts the test on an error.
  static std::unique_ptr<TestModel> load(const std::filesystem::path& config,
                                         const std::filesystem::path& weights);
  static std::unique_ptr<TestModel> make_small(std::uint64_t seed = 1);
  Namespace ns(StorageFormat format) const;
};

// Tests over a small model, which the suite makes once.
template <typename Test>
class OverSmallModel : public Test {
 public:
  static void SetUpTestSuite() { model_ = TestModel::make_small(); }
  static void TearDownTestSuite() { model_.reset(); }

 protected:
  static inline std::unique_ptr<TestModel> model_;
};

// A model with KV pages in one format.
struct TestEngine {
  TestEngine(const TestModel& model, StorageFormat format, std::uint32_t chunk_tokens,
             std::uint32_t pages = 64);

  Namespace ns;
  std::unique_ptr<PagePool> pool;
  Llama llama;
};

// Logits of the last `wanted` of `tokens`, computed `chunk` rows at a time.
std::vector<float> logits_of(Model& model, PagePool& pool, std::span<const Token> tokens,
                             std::uint32_t chunk, std::uint32_t wanted,
                             Stage stage = Stage::prompt);
std::vector<float> logits_of(const TestModel& model, StorageFormat format,
                             std::span<const Token> tokens, std::uint32_t chunk,
                             std::uint32_t wanted);

// ||out - reference|| / ||reference||.
double relative_error(std::span<const float> out, std::span<const float> reference);

// A checkpoint and what the reference made of it; paths from the source directory.
struct Checkpoint {
  const char* title;
  const char* config;
  const char* weights;
  const char* golden;
};
void PrintTo(const Checkpoint& checkpoint, std::ostream* out);
// Aborts the test on an error.
std::unique_ptr<TestModel> load_checkpoint(const Checkpoint& checkpoint);

struct Golden {
  std::vector<Token> tokens;
  std::vector<float> logits;  // of the last rows
  std::uint32_t rows = 0;
  std::vector<Token> greedy;  // the likeliest tokens after `tokens`, where the file has them
};
Golden read_golden(const Checkpoint& checkpoint);

constexpr Checkpoint kBundled[] = {
    {"docs_4m_short", "engine_adapter/models/docs-4m/config.json",
     "engine_adapter/models/docs-4m/model.safetensors",
     "tests/data/golden/docs-4m-short.safetensors"},
    {"docs_4m_long", "engine_adapter/models/docs-4m/config.json",
     "engine_adapter/models/docs-4m/model.safetensors",
     "tests/data/golden/docs-4m-long.safetensors"},
};
constexpr Checkpoint kFamilies[] = {
    {"llama", "tests/data/checkpoints/llama/config.json",
     "tests/data/checkpoints/llama/model.safetensors",
     "tests/data/checkpoints/llama/golden.safetensors"},
    {"qwen2_5", "tests/data/checkpoints/qwen2.5/config.json",
     "tests/data/checkpoints/qwen2.5/model.safetensors",
     "tests/data/checkpoints/qwen2.5/golden.safetensors"},
    {"qwen3", "tests/data/checkpoints/qwen3/config.json",
     "tests/data/checkpoints/qwen3/model.safetensors",
     "tests/data/checkpoints/qwen3/golden.safetensors"},
};

// Windows shorter than the text. The first is in three shards.
constexpr Checkpoint kWindowed[] = {
    {"mistral", "tests/data/checkpoints/mistral/config.json", "tests/data/checkpoints/mistral",
     "tests/data/checkpoints/mistral/golden.safetensors"},
    {"qwen2_5_window", "tests/data/checkpoints/qwen2.5-window/config.json",
     "tests/data/checkpoints/qwen2.5-window/model.safetensors",
     "tests/data/checkpoints/qwen2.5-window/golden.safetensors"},
};

// Latent attention; CUDA has kernels for the last two.
constexpr Checkpoint kLatent[] = {
    {"deepseek_v2", "tests/data/checkpoints/deepseek-v2/config.json",
     "tests/data/checkpoints/deepseek-v2/model.safetensors",
     "tests/data/checkpoints/deepseek-v2/golden.safetensors"},
    {"deepseek_v2_yarn", "tests/data/checkpoints/deepseek-v2-yarn/config.json",
     "tests/data/checkpoints/deepseek-v2-yarn/model.safetensors",
     "tests/data/checkpoints/deepseek-v2-yarn/golden.safetensors"},
    {"deepseek_v3", "tests/data/checkpoints/deepseek-v3/config.json",
     "tests/data/checkpoints/deepseek-v3/model.safetensors",
     "tests/data/checkpoints/deepseek-v3/golden.safetensors"},
    {"deepseek_v3_halves", "tests/data/checkpoints/deepseek-v3-halves/config.json",
     "tests/data/checkpoints/deepseek-v3-halves/model.safetensors",
     "tests/data/checkpoints/deepseek-v3-halves/golden.safetensors"},
};

constexpr StorageFormat kAllFormats[] = {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                         StorageFormat::bf16,     StorageFormat::f32,
                                         StorageFormat::int8,     StorageFormat::int4};

}  // namespace kvtier::engine::test
