#include "engine_adapter/reference/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

Tokenizer parsed(const Json& json) {
  auto tokenizer = Tokenizer::parse(as_read(json), "tokenizer.json");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

std::string refusal(const Json& json) {
  const auto tokenizer = Tokenizer::parse(as_read(json), "tokenizer.json");
  return tokenizer ? "accepted" : tokenizer.error().message;
}

std::vector<Token> ids(std::string_view text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// The text of each token, so that the splits show.
std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> found;
  const auto tokens = tokenizer.encode(text);
  EXPECT_TRUE(tokens);
  for (const Token token : *tokens) found.emplace_back(tokenizer.bytes_of(token));
  return found;
}

using Pieces = std::vector<std::string>;

TEST(Tokenizer, GivesTheIdsOfTheTokenizersLibrary) {
  const auto cases = read_json(KVTIER_SOURCE_DIR "/tests/data/tokenizer-cases.json");
  ASSERT_TRUE(cases) << cases.error().message;
  const auto tokenizer =
      Tokenizer::load(KVTIER_SOURCE_DIR "/engine_adapter/models/docs-4m/tokenizer.json");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  ASSERT_GE(cases->at("cases").size(), 200U);
  for (const Json& one : cases->at("cases")) {
    const auto text = one.at("text").get<std::string>();
    const auto tokens = tokenizer->encode(text);
    ASSERT_TRUE(tokens) << one.at("text");
    EXPECT_EQ(*tokens, one.at("ids").get<std::vector<Token>>()) << one.at("text");
    EXPECT_EQ(tokenizer->decode(*tokens), one.at("decoded").get<std::string>());
  }
}

class TokenizerFamily : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerFamily, GivesTheIdsOfTheReference) {
  const auto folder = source_directory() / "tests/data/tokenizers" / GetParam();
  const auto tokenizer = Tokenizer::load_model(folder);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto cases = read_json(folder / "cases.json");
  ASSERT_TRUE(cases) << cases.error().message;
  ASSERT_GE(cases->at("cases").size(), 100U);
  for (const Json& one : cases->at("cases")) {
    const auto text = one.at("text").get<std::string>();
    const auto tokens = tokenizer->encode(text);
    ASSERT_TRUE(tokens) << one.at("text");
    EXPECT_EQ(*tokens, one.at("ids").get<std::vector<Token>>()) << one.at("text");
    std::string streamed;
    TextStream stream(*tokenizer);
    for (const Token token : *tokens) {
      streamed += stream.push(token);
      EXPECT_EQ(valid_utf8_prefix(streamed), streamed.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, TokenizerFamily,
                         testing::Values("llama2", "llama3", "mistral", "mistral-bytes", "qwen2",
                                         "sentencepiece-bpe", "sentencepiece-unigram"),
                         [](const auto& test) {
                           std::string title = test.param;
                           std::replace(title.begin(), title.end(), '-', '_');
                           return title;
                         });

Tokenizer family(const char* title) {
  auto tokenizer = Tokenizer::load_model(source_directory() / "tests/data/tokenizers" / title);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

TEST(Tokenizer, PutsTheSpaceBackThatAWordHadBeforeIt) {
  for (const char* title : {"llama2", "mistral", "sentencepiece-bpe"}) {
    const Tokenizer tokenizer = family(title);
    for (const std::string text :
         {"Hello there", "two  spaces ", "\xE4\xB8\xAD\xF0\x9F\x98\x80\n\tx"}) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).value()), text) << title;
    }
  }
}

TEST(Tokenizer, KeepsASpaceThatIsTheTextsOwn) {
  for (const char* title : {"llama2", "sentencepiece-bpe"}) {
    const Tokenizer tokenizer = family(title);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(" a").value()), " a") << title;
  }
}

TEST(Tokenizer, FindsControlTokensThatSentencePieceDoesNot) {
  const Tokenizer tokenizer = family("sentencepiece-bpe");
  const auto tokens = tokenizer.encode("<s>a</s>").value();
  ASSERT_GE(tokens.size(), 3U);
  EXPECT_EQ(tokens.front(), 1U);
  EXPECT_EQ(tokens.back(), 2U);
  EXPECT_TRUE(tokenizer.is_special(1));
  ASSERT_EQ(tokenizer.template_prefix().size(), 1U);
  EXPECT_EQ(tokenizer.template_prefix()[0], 1U);
}

TEST(Tokenizer, TakesAddedTokensOfTheConfigurationBesideATokenizerModel) {
  const TemporaryDirectory folder;
  std::filesystem::copy_file(
      source_directory() / "tests/data/tokenizers/sentencepiece-bpe/tokenizer.model",
      folder / "tokenizer.model");
  write_file(folder / "tokenizer_config.json",
             R"({"add_bos_token": false,
                 "added_tokens_decoder": {"5000": {"content": "[INST]", "special": true}}})");
  const auto tokenizer = Tokenizer::load_model(folder.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->encode("[INST]").value(), (std::vector<Token>{5000}));
  EXPECT_TRUE(tokenizer->template_prefix().empty());
}

TEST(Tokenizer, RefusesATokenizerModelThatIsNone) {
  const TemporaryDirectory folder;
  const auto missing = Tokenizer::load_model(folder.path());
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("neither tokenizer.json nor tokenizer.model"),
            std::string::npos);
  write_file(folder / "tokenizer.model", "not a model");
  const auto broken = Tokenizer::load_model(folder.path());
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("tokenizer.model"), std::string::npos);
}

TEST(Tokenizer, JoinsTheLowestRankFirstAndLeftmostAmongEquals) {
  const Tokenizer tokenizer = parsed(tokenizer_json({"b c", "a b", "a bc", "a a"}));
  EXPECT_EQ(pieces(tokenizer, "abc"), (Pieces{"abc"}));
  EXPECT_EQ(pieces(tokenizer, "abab"), (Pieces{"ab", "ab"}));
  EXPECT_EQ(pieces(tokenizer, "aaa"), (Pieces{"aa", "a"}));
  EXPECT_EQ(pieces(tokenizer, "abcab"), (Pieces{"abc", "ab"}));
}

TEST(Tokenizer, ReadsBothSpellingsOfMerges) {
  Json json = tokenizer_json({"a b"});
  json["model"]["merges"] = Json::array({Json::array({"a", "b"})});
  EXPECT_EQ(pieces(parsed(json), "ab"), (Pieces{"ab"}));
}

TEST(Tokenizer, JoinsALongWordInLessThanQuadraticTime) {
  std::vector<std::string> merges;
  for (std::string run = "a"; run.size() <= 1024; run += run) merges.push_back(run + " " + run);
  const Tokenizer tokenizer = parsed(tokenizer_json(merges));
  const auto tokens = tokenizer.encode(std::string(1U << 18, 'a'));
  ASSERT_TRUE(tokens);
  EXPECT_EQ(tokens->size(), (1U << 18) / 2048);
}

TEST(Tokenizer, SplitsWordsAsByteLevelDoes) {
  const Tokenizer tokenizer = parsed(tokenizer_json({"\xC4\xA0 a", "a b", "b \xC4\xA0"}));
  EXPECT_EQ(pieces(tokenizer, "ab ab"), (Pieces{"ab", " a", "b"}));
  EXPECT_EQ(pieces(tokenizer, "b b"), (Pieces{"b", " ", "b"}));
}

TEST(Tokenizer, KeepsEveryByteOfEveryText) {
  const Tokenizer tokenizer = parsed(tokenizer_json({}));
  std::string text = "a\xC3\xA9 \xE4\xB8\xAD\xF0\x9F\x98\x80\r\n\t\x01 ";
  text += '\0';
  const auto tokens = tokenizer.encode(text);
  ASSERT_TRUE(tokens);
  EXPECT_EQ(*tokens, ids(text));
  EXPECT_EQ(tokenizer.decode(*tokens), text);
}

TEST(Tokenizer, RefusesATextThatIsNotUtf8) {
  const Tokenizer tokenizer = parsed(tokenizer_json({}));
  for (const char* text :
       {"ok\x80", "ok\xC3", "ok\xC0\x80", "ok\xED\xA0\x80", "ok\xF4\x90\x80\x80"}) {
    const auto tokens = tokenizer.encode(text);
    ASSERT_FALSE(tokens);
    EXPECT_NE(tokens.error().message.find("byte 2"), std::string::npos);
  }
}

TEST(Tokenizer, FindsAddedTokensInTheTextLongestFirst) {
  Json json = tokenizer_json({});
  json["added_tokens"] = {{{"id", 300}, {"content", "<e>"}, {"special", true}},
                          {{"id", 301}, {"content", "<e><e>"}, {"normalized", false}}};
  const Tokenizer tokenizer = parsed(json);
  EXPECT_EQ(tokenizer.encode("a<e>b<e><e><e>").value(),
            (std::vector<Token>{'a', 300, 'b', 301, 300}));
  EXPECT_EQ(tokenizer.encode("<e").value(), ids("<e"));
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_EQ(tokenizer.ids_end(), 302U);
}

TEST(Tokenizer, TakesAWholeWordFromTheVocabularyWhereMergesAreIgnored) {
  Json json = tokenizer_json({"a b", "c d"});
  json["model"]["vocab"]["abcd"] = 400;
  EXPECT_EQ(pieces(parsed(json), "abcd"), (Pieces{"ab", "cd"}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(pieces(parsed(json), "abcd"), (Pieces{"abcd"}));
}

Json with_split(const std::string& expression, const std::string& behavior, bool invert = false) {
  // Joins whatever stands in one piece, so that pieces show as tokens.
  Json json = tokenizer_json({"\xC4\xA0 a", "a a", "b b", "a b", "b a", "aa bb", "b \xC4\xA0"});
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", expression}}},
         {"behavior", behavior},
         {"invert", invert}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return json;
}

TEST(Tokenizer, SplitsWithEveryBehavior) {
  const std::string text = "aabb";
  EXPECT_EQ(pieces(parsed(with_split("x", "Isolated")), text), (Pieces{"aabb"}));
  EXPECT_EQ(pieces(parsed(with_split("a", "Isolated")), text), (Pieces{"a", "a", "bb"}));
  EXPECT_EQ(pieces(parsed(with_split("a", "Removed")), text), (Pieces{"bb"}));
  EXPECT_EQ(pieces(parsed(with_split("a", "Contiguous")), text), (Pieces{"aa", "bb"}));
  EXPECT_EQ(pieces(parsed(with_split("a", "Removed", true)), text), (Pieces{"a", "a"}));
  EXPECT_EQ(pieces(parsed(with_split("b", "MergedWithPrevious")), "bab"), (Pieces{"b", "ab"}));
  EXPECT_EQ(pieces(parsed(with_split("b", "MergedWithNext")), "abab"), (Pieces{"a", "ba", "b"}));
}

TEST(Tokenizer, SplitsAsLlama3Does) {
  const Tokenizer tokenizer = parsed(with_split(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "Isolated"));
  EXPECT_EQ(pieces(tokenizer, "aabb aa"), (Pieces{"aabb", " a", "a"}));
  EXPECT_EQ(pieces(tokenizer, "bb  aa"), (Pieces{"bb", " ", " a", "a"}));
}

TEST(Tokenizer, AddsTheSpaceThatByteLevelAsksFor) {
  Json json = tokenizer_json({"\xC4\xA0 a"});
  json["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(pieces(parsed(json), "ab"), (Pieces{" a", "b"}));
  EXPECT_EQ(pieces(parsed(json), " ab"), (Pieces{" a", "b"}));
}

TEST(Tokenizer, MeansWhatOnigurumaMeansByWhiteSpace) {
  const std::string expression = oniguruma_to_pcre2(R"(\s\S[^\s\\s]\p{L})").value();
  EXPECT_EQ(expression.find("\\s\\"), std::string::npos);
  EXPECT_NE(expression.find("\\\\s]"), std::string::npos);
  EXPECT_FALSE(oniguruma_to_pcre2(R"([\S])"));
  const auto splitter = Splitter::compile("\\s", SplitBehavior::removed, false).value();
  std::vector<std::string_view> found;
  // U+180E was white space once, U+0085 is.
  ASSERT_TRUE(
      splitter.split("a\xE1\xA0\x8E"
                     "b\xC2\x85"
                     "c",
                     found));
  EXPECT_EQ(found, (std::vector<std::string_view>{"a\xE1\xA0\x8E"
                                                  "b",
                                                  "c"}));
}

TEST(Tokenizer, KnowsWhatTheTemplatePutsInFront) {
  Json json = tokenizer_json({});
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {7}}, {"tokens", {"<s>"}}}}}}};
  const Tokenizer tokenizer = parsed(json);
  ASSERT_EQ(tokenizer.template_prefix().size(), 1U);
  EXPECT_EQ(tokenizer.template_prefix()[0], 7U);
  EXPECT_EQ(tokenizer.encode("a").value(), ids("a"));
}

TEST(Tokenizer, RefusesByNameWhatIsNotSupported) {
  const auto refused = [](const std::string& pointer, const Json& value) {
    Json json = tokenizer_json({"a b"});
    json[Json::json_pointer(pointer)] = value;
    return refusal(json);
  };
  const auto names = [](const std::string& message, const std::string& what) {
    EXPECT_NE(message.find("tokenizer.json"), std::string::npos) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  names(refused("/model/type", "Unigram"), "Unigram");
  names(refused("/model/continuing_subword_prefix", "##"), "continuing_subword_prefix");
  names(refused("/model/dropout", 0.1), "dropout");
  names(refused("/normalizer", {{"type", "Precompiled"}}), "Precompiled");
  names(refused("/normalizer", {{"type", "Replace"}, {"content", "x"}}), "pattern");
  names(refused("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), "BertPreTokenizer");
  names(refused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}), "U+2581");
  names(refused("/pre_tokenizer", nullptr), "ByteLevel");
  names(refused("/decoder", {{"type", "Metaspace"}}), "Metaspace");
  names(refused("/decoder", {{"type", "WordPiece"}}), "WordPiece");
  names(refused("/decoder", nullptr), "ByteLevel");
  names(refusal(with_split("(", "Isolated")), "expression");
  names(refusal(with_split("a", "Sideways")), "Sideways");
}

TEST(Tokenizer, RefusesBrokenVocabulariesAndMerges) {
  Json json = tokenizer_json({"a b"});
  json["model"]["vocab"].erase("z");
  EXPECT_NE(refusal(json).find("byte 122"), std::string::npos);
  json = tokenizer_json({"a b"});
  json["model"]["vocab"].erase("ab");
  EXPECT_NE(refusal(json).find("'ab' is not in the vocab"), std::string::npos);
  for (const Json& merge : {Json("ab"), Json("a b c"), Json(3), Json({"a"})}) {
    json = tokenizer_json({});
    json["model"]["merges"] = Json::array({merge});
    EXPECT_NE(refusal(json).find("merge 0"), std::string::npos);
  }
  json = tokenizer_json({});
  json["model"]["vocab"]["q"] = -1;
  EXPECT_NE(refusal(json), "accepted");
  EXPECT_NE(refusal(Json::object()), "accepted");
  EXPECT_NE(refusal(Json::array()), "accepted");
}

TEST(Utf8Stream, NeverGivesHalfACharacter) {
  const std::string text = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80z";
  Utf8Stream stream;
  std::string out;
  for (const char byte : text) {
    out += stream.push({&byte, 1});
    EXPECT_EQ(valid_utf8_prefix(out), out.size());
  }
  EXPECT_EQ(out + stream.finish(), text);
}

TEST(Utf8Stream, ReplacesWhatIsNoCharacter) {
  const auto repaired = [](std::string_view bytes) {
    Utf8Stream stream;
    const std::string out = stream.push(bytes);
    return out + stream.finish();
  };
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(repaired("a\x80"
                     "b"),
            "a" + r + "b");
  EXPECT_EQ(repaired("\xE4\xB8z"), r + "z");
  EXPECT_EQ(repaired("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(repaired("\xF0\x9F\x98"), r);
  EXPECT_EQ(repaired("\xC0\xAF"), r + r);
}

}  // namespace
}  // namespace kvtier::engine::test
