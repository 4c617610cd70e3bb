#include <gtest/gtest.h>

#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

std::span<const std::byte> bytes_in(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string two_tensors() {
  return safetensors_file({{"first", "F32", {2, 3}, std::string(24, 'a')},
                           {"second", "BF16", {4}, std::string(8, 'b')},
                           {"empty", "I32", {0, 7}, ""}});
}

// The message of the refusal; the file is copied to memory of its exact size, for the sanitizers.
std::string refusal(const std::string& file) {
  const auto copy = std::make_unique<std::byte[]>(file.size());
  std::copy_n(reinterpret_cast<const std::byte*>(file.data()), file.size(), copy.get());
  const auto parsed = parse_safetensors({copy.get(), file.size()}, "weights.safetensors");
  if (parsed) return "accepted";
  EXPECT_EQ(parsed.error().code, Errc::malformed);
  EXPECT_NE(parsed.error().message.find("weights.safetensors"), std::string::npos);
  return parsed.error().message;
}

std::string with_header(const std::string& header, std::size_t data = 8) {
  return refusal(safetensors_bytes(header, std::string(data, 'x')));
}

TEST(SafeTensors, GivesTypesShapesAndBytes) {
  const std::string file = two_tensors();
  const auto tensors = parse_safetensors(bytes_in(file), "file");
  ASSERT_TRUE(tensors);
  ASSERT_EQ(tensors->size(), 3U);
  const Tensor& first = tensors->at("first");
  EXPECT_EQ(first.describe(), "F32 [2, 3]");
  EXPECT_EQ(first.bytes.size(), 24U);
  EXPECT_EQ(static_cast<char>(first.bytes[23]), 'a');
  EXPECT_EQ(static_cast<char>(tensors->at("second").bytes[0]), 'b');
  EXPECT_TRUE(tensors->at("empty").bytes.empty());
}

TEST(SafeTensors, RefusesAFileTruncatedAtAnyByte) {
  const std::string file = two_tensors();
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(refusal(file.substr(0, size)), "accepted") << size << " bytes";
  }
  EXPECT_NE(refusal(file.substr(0, file.size() - 1)).find("tensor empty"), std::string::npos);
  EXPECT_NE(refusal(file + "x").find("belong to no tensor"), std::string::npos);
}

TEST(SafeTensors, RefusesAHeaderWithAnyByteMissing) {
  const std::string file = two_tensors();
  for (std::size_t at = 0; at + 1 < file.size() - 32; ++at) {
    std::string shorter = file;
    shorter.erase(at, 1);
    EXPECT_NE(refusal(shorter), "accepted") << "without byte " << at;
  }
}

TEST(SafeTensors, RefusesAHeaderLengthBeyondTheFileOrTheFormat) {
  std::string file = two_tensors();
  file[3] = 1;
  EXPECT_NE(refusal(file).find("truncated"), std::string::npos);
  file[7] = '\xFF';
  EXPECT_NE(refusal(file).find("not a safetensors file"), std::string::npos);
}

TEST(SafeTensors, RefusesMalformedHeaders) {
  const auto entry = [](const std::string& fields) { return "{\"t\":{" + fields + "}}"; };
  const std::string type = R"("dtype":"F32",)";
  const std::string good = type + R"("shape":[2],"data_offsets":[0,8])";
  EXPECT_EQ(with_header(entry(good)), "accepted");
  EXPECT_EQ(with_header(R"({"__metadata__":{"format":"pt"},"t":{)" + good + "}}"), "accepted");
  for (const std::string& header : std::vector<std::string>{
           "",
           "[]",
           "7",
           "{",
           R"({"t":[]})",
           R"({"t":null})",
           R"({"t":{)" + good + R"(},"t":{)" + good + "}}",
           entry(R"("shape":[2],"data_offsets":[0,8])"),
           entry(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"),
           entry(R"("dtype":32,"shape":[2],"data_offsets":[0,8])"),
           entry(type + R"("data_offsets":[0,8])"),
           entry(type + R"("shape":2,"data_offsets":[0,8])"),
           entry(type + R"("shape":[-2],"data_offsets":[0,8])"),
           entry(type + R"("shape":[2.0],"data_offsets":[0,8])"),
           entry(type + R"("shape":[3],"data_offsets":[0,8])"),
           entry(type + R"("shape":[4611686018427387905],"data_offsets":[0,8])"),
           entry(type + R"("shape":[4294967296,4294967296,4],"data_offsets":[0,8])"),
           entry(type + R"("shape":[2])"),
           entry(type + R"("shape":[2],"data_offsets":[0])"),
           entry(type + R"("shape":[2],"data_offsets":[8,0])"),
           entry(type + R"("shape":[2],"data_offsets":[0,9])"),
           entry(type + R"("shape":[2],"data_offsets":[8,16])"),
           entry(type + R"("shape":[2],"data_offsets":[-8,0])"),
           entry(type +
                 R"("shape":[2],"data_offsets":[18446744073709551608,18446744073709551615])"),
       }) {
    EXPECT_NE(with_header(header), "accepted") << header;
  }
}

TEST(SafeTensors, RefusesTensorsThatOverlapOrLeaveGaps) {
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const auto b = [](const std::string& offsets) {
    return R"("b":{"dtype":"F32","shape":[1],"data_offsets":[)" + offsets + "]}";
  };
  EXPECT_EQ(with_header("{" + a + "," + b("4,8") + "}"), "accepted");
  EXPECT_NE(with_header("{" + a + "," + b("2,6") + "}").find("overlaps"), std::string::npos);
  EXPECT_NE(with_header("{" + a + "," + b("0,4") + "}", 4).find("overlaps"), std::string::npos);
  EXPECT_NE(with_header("{" + a + "," + b("6,10") + "}", 10).find("gap"), std::string::npos);
}

TEST(SafeTensors, ReadsTheShardsThatAnIndexNames) {
  const TemporaryDirectory folder;
  write_file(folder / "one.safetensors", safetensors_file({{"a", "F32", {1}, "aaaa"}}));
  write_file(folder / "two.safetensors", safetensors_file({{"b", "F32", {1}, "bbbb"}}));
  const auto index = folder / "model.safetensors.index.json";
  write_file(index, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto model = SafeTensors::open_model(folder.path());
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->tensors().size(), 2U);
  EXPECT_EQ(model->files().size(), 2U);

  write_file(index, R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})");
  EXPECT_FALSE(SafeTensors::open_model(folder.path()));
  write_file(index, R"({"weight_map":{"a":"one.safetensors","b":"gone.safetensors"}})");
  EXPECT_NE(SafeTensors::open_model(folder.path()).error().message.find("gone.safetensors"),
            std::string::npos);
  write_file(index, R"({"weight_map":{"a":"../one.safetensors"}})");
  EXPECT_FALSE(SafeTensors::open_model(folder.path()));
}

TEST(SafeTensors, NamesTheFileThatIsMissingOrEmpty) {
  const TemporaryDirectory folder;
  EXPECT_EQ(SafeTensors::open_model(folder.path()).error().code, Errc::not_found);
  write_file(folder / "model.safetensors", "");
  EXPECT_NE(SafeTensors::open_model(folder.path()).error().message.find("is empty"),
            std::string::npos);
  EXPECT_FALSE(SafeTensors::open(folder.path()));
}

TEST(SafeTensors, NamesTheTensorThatDoesNotFitTheModel) {
  const auto config = parse_model_config(as_read(small_config()), "config").value();
  const TemporaryDirectory folder;
  const auto refused = [&](std::vector<TensorData> tensors) {
    write_file(folder / "model.safetensors", safetensors_file(tensors));
    const auto opened = SafeTensors::open_model(folder.path()).value();
    return LlamaWeights::bind(opened, config, kernels::cpu_kernels()).error().message;
  };
  EXPECT_NE(refused({}).find("no tensor model.embed_tokens.weight"), std::string::npos);
  EXPECT_NE(refused({{"model.embed_tokens.weight", "F32", {1, 1}, "aaaa"}}).find("[61, 32]"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtier::engine::test
