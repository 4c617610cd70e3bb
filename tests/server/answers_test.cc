#include <gtest/gtest.h>

#include "engine_adapter/reference/server/api_response.h"
#include "engine_adapter/reference/server/server_metrics.h"

namespace kvtier::engine::server {
namespace {

using Texts = std::vector<std::string>;

const Tokenizer& tokenizer() {
  static const auto loaded =
      Tokenizer::load_model(KVTIER_SOURCE_DIR "/tests/data/tokenizers/llama3");
  return *loaded;
}

// One token a byte.
std::vector<Token> bytes(const std::string& text) {
  std::vector<Token> tokens;
  for (const char c : text) {
    for (Token token = 0; token < tokenizer().ids_end(); ++token) {
      if (tokenizer().bytes_of(token) != std::string_view(&c, 1)) continue;
      tokens.push_back(token);
      break;
    }
  }
  EXPECT_EQ(tokens.size(), text.size());
  return tokens;
}

Texts pushed(AnswerText& answer, const std::string& text) {
  Texts found;
  for (const Token token : bytes(text)) found.push_back(answer.push(token));
  return found;
}

TEST(AnswerText, HoldsWhatCouldBeginAStopText) {
  const Texts stops{"END", "NEVER"};
  AnswerText answer(tokenizer(), stops);
  EXPECT_EQ(pushed(answer, "aENbE"), (Texts{"a", "", "", "ENb", ""}));
  EXPECT_FALSE(answer.stopped());
  EXPECT_EQ(pushed(answer, "NDzz"), (Texts{"", "", "", ""}));
  EXPECT_TRUE(answer.stopped());
  EXPECT_EQ(answer.finish(), "");
  EXPECT_EQ(answer.tokens(), 7U);
}

TEST(AnswerText, GivesWhatItHeldAtTheEnd) {
  const Texts stops{"ENDS"};
  AnswerText answer(tokenizer(), stops);
  EXPECT_EQ(pushed(answer, "xEND"), (Texts{"x", "", "", ""}));
  EXPECT_EQ(answer.finish(), "END");
}

TEST(AnswerText, TakesTheStopTextThatBeginsFirst) {
  const Texts stops{"cd", "bcde"};
  AnswerText answer(tokenizer(), stops);
  EXPECT_EQ(pushed(answer, "abcd"), (Texts{"a", "", "", "b"}));
  EXPECT_TRUE(answer.stopped());
}

TEST(AnswerText, NeverSendsHalfACharacter) {
  const Texts stops{"\xC3\xBC"};
  AnswerText answer(tokenizer(), stops);
  // e acute begins with the byte that the stop text begins with.
  EXPECT_EQ(pushed(answer, "\xC3\xA9x"), (Texts{"", "\xC3\xA9", "x"}));
  EXPECT_EQ(pushed(answer, "\xE4\xB8"), (Texts{"", ""}));
  EXPECT_EQ(answer.finish(), "\xEF\xBF\xBD");
}

ApiRequest request(bool chat, std::uint32_t answers) {
  ApiRequest made;
  made.chat = chat;
  made.answers = answers;
  made.prompts.emplace_back("a prompt");
  return made;
}

TEST(Answers, EndOneByOneAndCountTheirTokens) {
  ApiRequest asked = request(false, 2);
  asked.stops = {"b"};
  Answers answers(asked, tokenizer());
  const auto tokens = bytes("ab");
  EXPECT_EQ(answers.token(0, {tokens[0], 0, {}})->text, "a");
  EXPECT_EQ(answers.token(0, {tokens[1], 0, {}})->finish_reason, "stop");
  EXPECT_FALSE(answers.token(0, {tokens[0], 0, {}}));
  EXPECT_FALSE(answers.finished(0, FinishReason::cancelled));
  EXPECT_FALSE(answers.all_ended(0, 2));
  EXPECT_TRUE(answers.all_ended(0, 1));
  EXPECT_EQ(answers.finished(1, FinishReason::tokens_max)->finish_reason, "length");
  EXPECT_TRUE(answers.all_ended(0, 2));
  EXPECT_EQ(answers.completion_tokens(), 2U);
}

TEST(ResponseWriter, WritesBothShapesOfLogprobs) {
  ApiRequest asked = request(false, 1);
  asked.logprobs = true;
  const auto tokens = bytes("ab");
  const Piece piece{.sample = 0,
                    .text = "ab",
                    .tokens = {{tokens[0], -1, {{tokens[1], -0.5F}}}, {tokens[1], -2, {}}},
                    .finish_reason = "length"};
  ResponseWriter writer(asked, tokenizer(), "cmpl-1", "m", 7);
  const auto whole = writer.whole({piece}, ResponseWriter::usage(5, 3, 2));
  EXPECT_EQ(whole.at("choices")[0].at("logprobs").dump(),
            R"({"text_offset":[0,1],"token_logprobs":[-1.0,-2.0],"tokens":["a","b"],)"
            R"("top_logprobs":[{"b":-0.5},{}]})");
  EXPECT_EQ(whole.at("usage").dump(),
            R"({"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,)"
            R"("prompt_tokens_details":{"cached_tokens":3}})");
  asked.chat = true;
  const auto chunk = writer.chunk(piece);
  EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
  EXPECT_EQ(chunk.at("choices")[0].at("delta").dump(), R"({"content":"ab"})");
  const auto& content = chunk.at("choices")[0].at("logprobs").at("content");
  EXPECT_EQ(content[0].dump(), R"({"token":"a","logprob":-1.0,"bytes":[97],)"
                               R"("top_logprobs":[{"token":"b","logprob":-0.5,"bytes":[98]}]})");
}

// What an evaluation harness reads: the prompt's log probabilities, then the answer's.
TEST(ResponseWriter, APromptsTokensComeFirstAndItsFirstHasNoLogprob) {
  ApiRequest asked = request(false, 1);
  asked.logprobs = asked.echo = true;
  asked.top_logprobs = 1;
  const auto tokens = bytes("abc");
  Piece prompt{.sample = 0,
               .text = "ab",
               .tokens = {{tokens[0], 0, {}}, {tokens[1], -3, {{tokens[2], -0.5F}}}},
               .finish_reason = "",
               .prompt_tokens = 2,
               .prompt_characters = 2};
  Piece answer{.sample = 0,
               .text = "c",
               .tokens = {{tokens[2], -1, {{tokens[2], -1}}}},
               .finish_reason = "length"};
  const std::string prompt_part =
      R"({"text_offset":[0,1],"token_logprobs":[null,-3.0],"tokens":["a","b"],)"
      R"("top_logprobs":[null,{"c":-0.5,"b":-3.0}]})";
  ResponseWriter stream(asked, tokenizer(), "cmpl-1", "m", 7);
  EXPECT_EQ(stream.chunk(prompt).at("choices")[0].at("logprobs").dump(), prompt_part);
  EXPECT_EQ(stream.chunk(answer).at("choices")[0].at("logprobs").at("text_offset").dump(), "[2]");

  Piece all{.sample = 0, .text = "", .tokens = {}, .finish_reason = ""};
  append(all, prompt);
  append(all, answer);
  ResponseWriter writer(asked, tokenizer(), "cmpl-1", "m", 7);
  const auto whole = writer.whole({all}, {}).at("choices")[0];
  EXPECT_EQ(whole.at("text"), "abc");
  EXPECT_EQ(whole.at("logprobs").dump(),
            R"({"text_offset":[0,1,2],"token_logprobs":[null,-3.0,-1.0],"tokens":["a","b","c"],)"
            R"("top_logprobs":[null,{"c":-0.5,"b":-3.0},{"c":-1.0}]})");

  // With a token before the text, and a space that only the tokens have.
  prompt.prompt_added = 1;
  prompt.prompt_characters = 0;
  ResponseWriter added(asked, tokenizer(), "cmpl-1", "m", 7);
  EXPECT_EQ(added.chunk(prompt).at("choices")[0].at("logprobs").at("text_offset").dump(), "[0,0]");
  EXPECT_EQ(added.chunk(answer).at("choices")[0].at("logprobs").at("text_offset").dump(), "[0]");
}

TEST(ServerMetrics, WritesCumulativeBucketsUnderTheNamesOfDashboards) {
  ServerMetrics metrics("a \"model\"");
  metrics.first_token(std::chrono::milliseconds(3));
  metrics.first_token(std::chrono::hours(10));
  metrics.response(200);
  SchedulerMetrics scheduler;
  scheduler.pages = 10;
  scheduler.pages_used = 4;
  scheduler.cache_hits[0] = 16;
  scheduler.cache_hits[1] = 32;
  const std::string text = metrics.prometheus(scheduler);
  const std::string labels = R"({model_name="a \"model\"")";
  for (const std::string& line :
       {"vllm:time_to_first_token_seconds_bucket" + labels + ",le=\"0.001\"} 0\n",
        "vllm:time_to_first_token_seconds_bucket" + labels + ",le=\"0.005\"} 1\n",
        "vllm:time_to_first_token_seconds_bucket" + labels + ",le=\"+Inf\"} 2\n",
        "vllm:time_to_first_token_seconds_count" + labels + "} 2\n",
        "vllm:kv_cache_usage_perc" + labels + "} 0.4\n",
        "vllm:external_prefix_cache_hits_total" + labels + "} 48.0\n",
        "kvtier_engine_http_responses_total" + labels + ",status=\"200\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace kvtier::engine::server
