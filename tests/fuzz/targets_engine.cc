// Files of models.
#include "client/base/check.h"
#include "engine_adapter/engine/safetensors.h"
#include "engine_adapter/engine/tokenizer_json.h"
#include "tests/fuzz/targets.h"

namespace kvtier::fuzz {
namespace {

void run_safetensors(std::span<const std::byte> bytes) {
  const auto tensors = engine::parse_safetensors(bytes, "fuzz");
  if (!tensors) return KVTIER_CHECK(!tensors.error().message.empty());
  for (const auto& [name, tensor] : *tensors) {
    const auto* first = tensor.bytes.data();
    KVTIER_CHECK(
        tensor.bytes.empty() ||
        (first >= bytes.data() && first + tensor.bytes.size() <= bytes.data() + bytes.size()));
    std::uint64_t elements = 1;
    for (const std::uint64_t side : tensor.shape) elements *= side;
    KVTIER_CHECK(elements * engine::bytes_of(tensor.type) == tensor.bytes.size());
  }
}

std::vector<Bytes> safetensors_seeds() {
  const auto file = [](const std::string& json, std::size_t data) {
    Bytes bytes(8 + json.size() + data);
    for (unsigned i = 0; i < 8; ++i) bytes[i] = std::byte(json.size() >> 8 * i & 0xFF);
    for (std::size_t i = 0; i < json.size(); ++i) bytes[8 + i] = std::byte(json[i]);
    return bytes;
  };
  const std::vector<Bytes> right{
      file(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
           R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
           32),
      file(R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F16","shape":[],)"
           R"("data_offsets":[0,2]}})",
           2)};
  for (const Bytes& bytes : right)
    KVTIER_CHECK(engine::parse_safetensors(bytes, "seed").has_value());
  return right;
}

void run_tokenizer(std::span<const std::byte> bytes) {
  const auto json = engine::parse_json(text_of(bytes), "fuzz");
  if (!json) return;
  auto parts = engine::parse_tokenizer(*json, "fuzz");
  if (!parts) return KVTIER_CHECK(!parts.error().message.empty());
  const auto tokenizer = engine::Tokenizer::make(std::move(*parts));
  if (!tokenizer) return KVTIER_CHECK(!tokenizer.error().message.empty());
  const auto tokens = tokenizer->encode("Hello, w\xC3\xB6rld 123\n  x");
  if (tokens) (void)tokenizer->decode(*tokens);
}

std::vector<Bytes> tokenizer_seeds() {
  const std::string right = R"({"version":"1.0","truncation":null,"padding":null,
    "added_tokens":[{"id":6,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,
                     "normalized":false,"special":true}],
    "normalizer":null,
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
    "post_processor":null,"decoder":{"type":"ByteLevel"},
    "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,
             "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,
             "vocab":{"H":0,"e":1,"l":2,"o":3,"ll":4,"He":5},"merges":["l l","H e"]}})";
  const auto parts = engine::parse_tokenizer(engine::parse_json(right, "seed").value(), "seed");
  KVTIER_CHECK(parts.has_value());
  return {bytes_of(right)};
}

}  // namespace

Target safetensors() {
  return {"safetensors", run_safetensors, safetensors_seeds};
}
Target tokenizer() {
  return {"tokenizer", run_tokenizer, tokenizer_seeds};
}

}  // namespace kvtier::fuzz
