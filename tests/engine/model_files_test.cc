// A model's directory as people have it: overwritten under a running engine, not quite matching,
// or holding something else altogether.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/fd.h"
#include "engine_adapter/reference/model/instance.h"
#include "engine_adapter/reference/model/score.h"
#include "engine_adapter/reference/model/weights/loaded_model.h"
#include "engine_adapter/reference/template/chat_template.h"
#include "tests/engine/scheduler/scheduled.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

constexpr std::uint32_t kVocab = 61;  // of small_config()

// Writes into the file that is there, as dd conv=notrunc, rsync --inplace and cp do.
void overwrite(const std::filesystem::path& path, std::string_view bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(fd);
  ASSERT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
}

class ModelFolder : public testing::Test {
 protected:
  ModelFolder() {
    write(small_config());
    write_file(folder_ / "tokenizer.json", tokenizer_json({}).dump());
    write_file(weights_file(), weights(1));
  }

  void write(const Json& config) { write_file(folder_ / "config.json", config.dump()); }
  std::filesystem::path weights_file() const { return folder_ / "model.safetensors"; }
  static std::string weights(std::uint64_t seed) {
    return small_weights(parse_model_config(as_read(small_config()), "small").value(), seed);
  }
  static std::vector<TensorData> tensors(std::uint64_t seed = 1) {
    const std::string file = weights(seed);
    const auto parsed =
        parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "small");
    std::vector<TensorData> list;
    for (const auto& [title, tensor] : *parsed) {
      list.push_back({title,
                      name(tensor.type),
                      tensor.shape,
                      {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}});
    }
    return list;
  }
  static TensorData& find(std::vector<TensorData>& list, const std::string& title) {
    return *std::ranges::find(list, title, &TensorData::name);
  }

  std::unique_ptr<LoadedModel> load() {
    auto loaded = LoadedModel::load(folder_.path());
    EXPECT_TRUE(loaded) << loaded.error().message;
    return loaded ? std::move(*loaded) : nullptr;
  }
  std::string refusal() {
    const auto loaded = LoadedModel::load(folder_.path());
    return loaded ? "accepted" : loaded.error().message;
  }
  void expect_refused(const std::string& what) {
    const std::string message = refusal();
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_NE(message.find(folder_.path().string()), std::string::npos) << message;
  }

  TemporaryDirectory folder_;
};

std::vector<float> answers_of(LoadedModel& loaded) {
  auto instance = Instance::make(loaded, {.device = {}, .pool_tokens = 256}).value();
  return logits_of(*instance.model, *instance.pool, random_tokens(50, kVocab, 3), 16, 50);
}

TEST_F(ModelFolder, an_engine_goes_on_with_the_weights_it_digested_when_the_file_is_overwritten) {
  const auto loaded = load();
  ASSERT_NE(loaded, nullptr);
  const auto right = answers_of(*loaded);

  overwrite(weights_file(), weights(2));
  const auto other = load();
  ASSERT_NE(other, nullptr);
  EXPECT_NE(other->revision, loaded->revision);
  EXPECT_NE(answers_of(*other), right);
  EXPECT_EQ(answers_of(*loaded), right);

  overwrite(weights_file(), weights(1));
  const auto again = load();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->revision, loaded->revision);
  EXPECT_EQ(answers_of(*again), right);
}

TEST_F(ModelFolder, an_engine_lives_on_when_its_weights_are_cut_short_or_replaced) {
  const auto loaded = load();
  ASSERT_NE(loaded, nullptr);
  const auto right = answers_of(*loaded);
  std::filesystem::resize_file(weights_file(), 100);
  EXPECT_EQ(answers_of(*loaded), right);
  write_file(folder_ / "next", weights(2));
  std::filesystem::rename(folder_ / "next", weights_file());
  EXPECT_EQ(answers_of(*loaded), right);
}

TEST_F(ModelFolder, weights_that_a_gpu_has_are_let_go_in_host_memory) {
  const auto loaded = load();
  ASSERT_NE(loaded, nullptr);
  const std::string revision = loaded->revision;
  loaded->let_go_of_weights();
  EXPECT_TRUE(loaded->tensors.files().empty());
  EXPECT_EQ(loaded->weights.embedding.data, nullptr);
  EXPECT_EQ(loaded->revision, revision);
}

TEST_F(ModelFolder, a_head_of_its_own_beside_tied_embeddings_is_refused_and_a_copy_taken) {
  Json config = small_config();
  config["tie_word_embeddings"] = true;
  write(config);
  auto list = tensors();
  std::string& head = find(list, "lm_head.weight").bytes;
  head = find(list, "model.embed_tokens.weight").bytes;
  write_file(weights_file(), safetensors_file(list));
  EXPECT_EQ(refusal(), "accepted");

  const std::size_t row = head.size() / kVocab;
  std::rotate(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(row), head.end());
  write_file(weights_file(), safetensors_file(list));
  expect_refused("lm_head.weight");
  expect_refused("tie_word_embeddings");

  std::erase_if(list, [](const TensorData& one) { return one.name == "lm_head.weight"; });
  write_file(weights_file(), safetensors_file(list));
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(ModelFolder, a_tensor_that_nothing_is_done_with_is_named) {
  const auto with = [&](const TensorData& more) {
    auto list = tensors();
    list.push_back(more);
    write_file(weights_file(), safetensors_file(list));
  };
  const std::string layer = "model.layers.2.self_attn.";
  with({layer + "rotary_emb.inv_freq", "F32", {4}, std::string(16, 'x')});
  EXPECT_EQ(refusal(), "accepted");
  for (const std::string& title : std::vector<std::string>{
           "model.layers.3.self_attn.rotary_emb.inv_freq", "other.rotary_emb.inv_freq",
           layer + "q_proj.weight_scale", layer + "q_norm.weight", "lm_head.bias",
           "model.layers.3.input_layernorm.weight"}) {
    with({title, "F32", {4}, std::string(16, 'x')});
    expect_refused(title);
  }
  with({layer + "q_proj.qweight", "F8_E4M3", {4}, "xxxx"});
  expect_refused("quantised");
}

TEST_F(ModelFolder, tokens_beyond_the_vocabulary_are_refused_in_prompts_and_not_at_the_start) {
  Json config = small_config();
  config["eos_token_id"] = {2, kVocab};  // the second is never chosen
  config["bos_token_id"] = kVocab + 1;
  write(config);
  const auto loaded = load();
  ASSERT_NE(loaded, nullptr);
  ASSERT_EQ(loaded->notes.size(), 1U);
  EXPECT_NE(loaded->notes.front().find("vocab_size is 61"), std::string::npos);
  EXPECT_EQ(loaded->config.eos, (std::vector<Token>{2, kVocab}));

  auto instance = Instance::make(*loaded, {.device = {}, .pool_tokens = 256}).value();
  const auto answer_to = [&](const std::vector<Token>& prompt) {
    Request request;
    request.prompt = prompt;
    request.tokens_max = 3;
    request.stop_tokens = {kVocab + 5};
    return check_request(request, *instance.model, *instance.pool, {});
  };
  const auto inside = loaded->tokenizer->encode("\n ,0:").value();
  EXPECT_TRUE(answer_to(inside));
  const auto beyond = loaded->tokenizer->encode("\n ,z").value();  // 'z' is 122
  const auto refused = answer_to(beyond);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid);
  EXPECT_NE(refused.error().message.find("token 122"), std::string::npos);
  const auto scored = score(*instance.model, *instance.pool, *loaded->tokenizer, beyond, 16);
  ASSERT_FALSE(scored);
  EXPECT_NE(scored.error().message.find("token 122"), std::string::npos);
}

TEST_F(ModelFolder, fields_that_are_not_known_are_named_and_nothing_is_said_of_others) {
  EXPECT_TRUE(load()->config.unknown_fields.empty());
  Json config = small_config();
  config["vocab_size"] = 256;
  config["unsloth_fixed"] = true;
  config["auto_map"] = {{"AutoModelForCausalLM", "own.Model"}};
  config["nothing_at_all"] = nullptr;
  write_file(weights_file(),
             small_weights(parse_model_config(as_read(config), "config").value(), 1));
  write(config);
  const auto loaded = load();
  ASSERT_NE(loaded, nullptr);
  ASSERT_EQ(loaded->notes.size(), 1U);
  EXPECT_NE(loaded->notes.front().find("\"auto_map\" \"unsloth_fixed\""), std::string::npos)
      << loaded->notes.front();
}

struct Disguised {
  const char* title;
  std::string bytes;
  const char* named;
};

std::vector<Disguised> disguised() {
  using namespace std::string_literals;
  return {
      {"a pointer",
       "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 14000000000\n",
       "git lfs pull"},
      {"a zip", "PK\x03\x04\x00\x00\x00\x00"s + std::string(200, 'x'), "zip archive"},
      {"a pickle", "\x80\x02}q\x00(X\x05\x00\x00\x00"s, "pickle"},
      {"gzip", "\x1F\x8B\x08\x00\x00\x00\x00\x00\x00\x03"s, "unpack it"},
      {"GGUF", "GGUF\x03\x00\x00\x00\x23\x01"s, "GGUF"},
      {"a page", "\n<!DOCTYPE html>\n<html><head><title>404</title>", "web page"},
      {"zeros", std::string(5000, '\0'), "zeros"},
      {"nothing", "", "empty"},
  };
}

TEST_F(ModelFolder, a_file_that_is_something_else_is_named_for_what_it_is) {
  for (const Disguised& one : disguised()) {
    for (const char* file : {"model.safetensors", "tokenizer.json", "config.json"}) {
      SCOPED_TRACE(testing::Message() << one.title << " as " << file);
      const std::string was = read_file(folder_ / file).value();
      write_file(folder_ / file, one.bytes);
      expect_refused(one.named);
      expect_refused(file);
      write_file(folder_ / file, was);
    }
  }
  ASSERT_EQ(refusal(), "accepted");
  write_file(weights_file(), R"({"error":"Repository not found"})");
  expect_refused("Repository not found");
  write_file(weights_file(), "Entry not found");
  expect_refused("Entry not found");
  write_file(weights_file(), weights(1).substr(0, weights(1).size() - 5));
  expect_refused("truncated");
}

TEST_F(ModelFolder, a_sentencepiece_model_or_a_template_that_is_a_pointer_is_named) {
  const std::string pointer = disguised().front().bytes;
  std::filesystem::remove(folder_ / "tokenizer.json");
  write_file(folder_ / "tokenizer.model", pointer);
  expect_refused("git lfs pull");
  write_file(folder_ / "chat_template.jinja", pointer);
  const auto chat = ChatTemplate::load(folder_.path());
  ASSERT_FALSE(chat);
  EXPECT_NE(chat.error().message.find("git lfs pull"), std::string::npos);
}

TEST_F(ModelFolder, weights_of_another_kind_alone_are_named) {
  std::filesystem::remove(weights_file());
  expect_refused("has no model.safetensors");
  write_file(folder_ / "pytorch_model.bin", "PK\x03\x04");
  expect_refused("pytorch_model.bin");
}

}  // namespace
}  // namespace kvtier::engine::test
