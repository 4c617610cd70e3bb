// Files of models.
#include <cstdio>

#include "core/base/check.h"
#include "engine_adapter/reference/files/safetensors.h"
#include "engine_adapter/reference/tokenizer/tokenizer_json.h"
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

// UTF-8 of a character below U+0800.
std::string character(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::vector<Bytes> tokenizer_seeds() {
  // GPT-2's alphabet of bytes, and two merges.
  engine::Json vocabulary = engine::Json::object();
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    vocabulary[character(printable ? byte : next++)] = byte;
  }
  vocabulary["ll"] = 256;
  vocabulary["He"] = 257;
  const engine::Json json{
      {"added_tokens", {{{"id", 258}, {"content", "<s>"}, {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"l l", "H e"}}}}};
  const std::string right = json.dump();
  const auto parts = engine::parse_tokenizer(engine::parse_json(right, "seed").value(), "seed");
  if (!parts) std::fprintf(stderr, "%s\n", parts.error().message.c_str());
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
