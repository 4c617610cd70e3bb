#include "tests/engine/support.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "engine_adapter/reference/model/sampler.h"

namespace kvtier::engine::test {
namespace {

// UTF-8 of a character below U+0800.
std::string character(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// GPT-2's alphabet: ids are bytes here.
Json byte_vocabulary() {
  Json vocabulary = Json::object();
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    vocabulary[character(printable ? byte : next++)] = byte;
  }
  return vocabulary;
}

}  // namespace

Json tokenizer_json(const std::vector<std::string>& merges) {
  Json vocabulary = byte_vocabulary();
  for (std::size_t i = 0; i < merges.size(); ++i) {
    std::string joined = merges[i];
    joined.erase(joined.find(' '), 1);
    vocabulary[joined] = 256 + i;
  }
  return {
      {"added_tokens", Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

namespace {

std::string as_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::vector<float> random_floats(std::size_t count, SplitMix64& random, double centre,
                                 double spread) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(centre + spread * (2 * random.next_unit() - 1));
  }
  return values;
}

}  // namespace

// The one this was built from, or what the environment says where the tests were carried elsewhere.
std::filesystem::path source_directory() {
  const char* given = std::getenv("KVTIER_SOURCE_DIR");
  return given != nullptr ? given : KVTIER_SOURCE_DIR;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-engine-XXXXXX").string();
  EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::filesystem::remove_all(path_);
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file.append(header).append(data);
}

std::string safetensors_file(const std::vector<TensorData>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const TensorData& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return safetensors_bytes(text, data);
}

Json small_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_act", "silu"},
          {"vocab_size", 61},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 1024},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"attention_bias", true},
          {"mlp_bias", true}};
}

std::string small_weights(const ModelConfig& config, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<TensorData> tensors;
  const auto matrix = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    tensors.push_back(
        {name, "F32", {rows, columns}, as_bytes(random_floats(rows * columns, random, 0, 0.4))});
  };
  const auto vector = [&](const std::string& name, std::uint64_t count, double centre) {
    tensors.push_back({name, "F32", {count}, as_bytes(random_floats(count, random, centre, 0.2))});
  };
  const auto linear = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    matrix(name + ".weight", rows, columns);
    vector(name + ".bias", rows, 0);
  };
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t kv_size = std::uint64_t{config.kv_heads} * config.head_dim;
  matrix("model.embed_tokens.weight", config.vocab_size, hidden);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    vector(prefix + "input_layernorm.weight", hidden, 1);
    linear(prefix + "self_attn.q_proj", std::uint64_t{config.heads} * config.head_dim, hidden);
    linear(prefix + "self_attn.k_proj", kv_size, hidden);
    linear(prefix + "self_attn.v_proj", kv_size, hidden);
    linear(prefix + "self_attn.o_proj", hidden, std::uint64_t{config.heads} * config.head_dim);
    vector(prefix + "post_attention_layernorm.weight", hidden, 1);
    linear(prefix + "mlp.gate_proj", config.intermediate_size, hidden);
    linear(prefix + "mlp.up_proj", config.intermediate_size, hidden);
    linear(prefix + "mlp.down_proj", hidden, config.intermediate_size);
  }
  vector("model.norm.weight", hidden, 1);
  matrix("lm_head.weight", config.vocab_size, hidden);
  return safetensors_file(tensors);
}

std::vector<Token> random_tokens(std::size_t count, std::uint32_t vocab_size, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.next() % vocab_size);
  return tokens;
}

std::unique_ptr<TestModel> TestModel::load(const std::filesystem::path& config_path,
                                           const std::filesystem::path& weights_path) {
  auto config = load_model_config(config_path);
  auto tensors = std::filesystem::is_directory(weights_path) ? SafeTensors::open_model(weights_path)
                                                             : SafeTensors::open(weights_path);
  if (!config || !tensors) {
    ADD_FAILURE() << (config ? tensors.error() : config.error()).message;
    return nullptr;
  }
  auto weights = LlamaWeights::bind(*tensors, *config, kernels::cpu_kernels());
  if (!weights) {
    ADD_FAILURE() << weights.error().message;
    return nullptr;
  }
  return std::unique_ptr<TestModel>(
      new TestModel{std::move(*config), std::move(*tensors), std::move(*weights)});
}

std::unique_ptr<TestModel> TestModel::make_small(std::uint64_t seed) {
  const TemporaryDirectory folder;
  const Json config = small_config();
  write_file(folder / "config.json", config.dump());
  write_file(folder / "model.safetensors",
             small_weights(parse_model_config(as_read(config), "small").value(), seed));
  return load(folder / "config.json", folder / "model.safetensors");
}

Namespace TestModel::ns(StorageFormat format) const {
  Namespace ns;
  ns.model = "test";
  ns.layers = config.kept_layers();
  ns.kv_heads = config.kv_heads;
  ns.head_dim_k = config.head_dim;
  ns.head_dim_v = config.head_dim_v();
  ns.format = format;
  ns.positions = config.describe_positions();
  return ns;
}

TestEngine::TestEngine(const TestModel& model, StorageFormat format, std::uint32_t chunk_tokens,
                       std::uint32_t pages)
    : ns(model.ns(format)),
      pool(PagePool::create(RecordLayout::of(ns), pages).value()),
      llama(model.config, model.weights, kernels::cpu_kernels(), RecordLayout::of(ns),
            chunk_tokens) {}

std::vector<float> logits_of(Model& model, PagePool& pool, std::span<const Token> tokens,
                             std::uint32_t chunk, std::uint32_t wanted, Stage stage) {
  const auto count = static_cast<std::uint32_t>(tokens.size());
  Sequence sequence(pool, NamespaceId{}, count);
  const std::size_t vocab = model.config().vocab_size;
  std::vector<float> all(wanted * vocab);
  std::size_t got = 0;
  while (sequence.length() < count) {
    sequence.forget(model.config().unseen_blocks(sequence.length()));
    const std::uint32_t rows = std::min(chunk, count - sequence.length());
    const std::uint32_t end = sequence.length() + rows;
    const std::uint32_t from = std::max(sequence.length(), count - wanted);
    const StepInput input{&sequence, tokens.subspan(sequence.length(), rows),
                          end > from ? end - from : 0, stage};
    EXPECT_TRUE(model.step({&input, 1}, std::span(all).subspan(got * vocab)));
    got += input.logit_rows;
  }
  EXPECT_EQ(got, wanted);
  model.wait();
  return all;
}

std::vector<float> logits_of(const TestModel& model, StorageFormat format,
                             std::span<const Token> tokens, std::uint32_t chunk,
                             std::uint32_t wanted) {
  TestEngine engine(model, format, chunk, static_cast<std::uint32_t>(tokens.size()) / 16 + 1);
  return logits_of(engine.llama, *engine.pool, tokens, chunk, wanted);
}

double relative_error(std::span<const float> out, std::span<const float> reference) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double d = static_cast<double>(out[i]) - reference[i];
    difference += d * d;
    norm += static_cast<double>(reference[i]) * reference[i];
  }
  return std::sqrt(difference / norm);
}

void PrintTo(const Checkpoint& checkpoint, std::ostream* out) {
  *out << checkpoint.title;
}

std::unique_ptr<TestModel> load_checkpoint(const Checkpoint& checkpoint) {
  return TestModel::load(source_directory() / checkpoint.config,
                         source_directory() / checkpoint.weights);
}

Golden read_golden(const Checkpoint& checkpoint) {
  const auto file = SafeTensors::open(source_directory() / checkpoint.golden);
  if (!file) {
    ADD_FAILURE() << file.error().message;
    return {};
  }
  const Tensor& tokens = *file->find("tokens").value();
  const Tensor& logits = *file->find("logits").value();
  EXPECT_EQ(tokens.type, ElementType::i32);
  EXPECT_EQ(logits.type, ElementType::f32);
  Golden golden;
  golden.tokens.resize(tokens.shape.at(0));
  golden.logits.resize(logits.shape.at(0) * logits.shape.at(1));
  golden.rows = static_cast<std::uint32_t>(logits.shape.at(0));
  std::memcpy(golden.tokens.data(), tokens.bytes.data(), tokens.bytes.size());
  std::memcpy(golden.logits.data(), logits.bytes.data(), logits.bytes.size());
  if (const auto greedy = file->find("greedy")) {
    golden.greedy.resize((*greedy)->shape.at(0));
    std::memcpy(golden.greedy.data(), (*greedy)->bytes.data(), (*greedy)->bytes.size());
  }
  return golden;
}

}  // namespace kvtier::engine::test
