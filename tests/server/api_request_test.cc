#include "engine_adapter/reference/server/api_request.h"

#include <gtest/gtest.h>

#include "engine_adapter/reference/server/limits.h"
#include "engine_adapter/reference/server/route.h"

namespace kvtier::engine::server {
namespace {

constexpr const char* kCompletion = R"({"model": "m", "prompt": "x")";
constexpr const char* kChat = R"({"model": "m", "messages": [{"role": "user", "content": "x"}])";

ApiRequest accepted(const std::string& more, bool chat = false) {
  const auto request = parse_request((chat ? kChat : kCompletion) + more + "}", chat);
  EXPECT_TRUE(request) << (request ? "" : request.error().message);
  return request ? *request : ApiRequest{};
}

// The field that a request with `more` is refused for.
std::string refused(const std::string& more, bool chat = false) {
  const auto request = parse_request((chat ? kChat : kCompletion) + more + "}", chat);
  if (request) return "accepted";
  EXPECT_EQ(request.error().status, 400U);
  EXPECT_NE(request.error().message.find(request.error().param), std::string::npos);
  return request.error().param;
}

TEST(ApiRequest, HasTheDefaultsOfTheApi) {
  const ApiRequest completion = accepted("");
  EXPECT_EQ(completion.tokens_max, 16U);
  EXPECT_EQ(completion.sampling.temperature, 1);
  EXPECT_EQ(completion.answers, 1U);
  EXPECT_FALSE(completion.seeded || completion.stream || completion.logprobs);
  EXPECT_EQ(std::get<std::string>(completion.prompts.at(0)), "x");
  EXPECT_FALSE(accepted("", true).tokens_max);
}

TEST(ApiRequest, ReadsWhatIsAskedFor) {
  const ApiRequest request = accepted(
      R"(, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": -3, "n": 2, "stop": "a",
          "stream": true, "stream_options": {"include_usage": true}, "logprobs": 0, "max_tokens": 7,
          "cache_salt": "s", "user": "u", "priority": -1, "stop_token_ids": [4], "ignore_eos": true)");
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_k, 40U);
  EXPECT_EQ(request.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_TRUE(request.seeded && request.stream && request.include_usage && request.logprobs);
  EXPECT_EQ(request.top_logprobs, 0U);
  EXPECT_EQ(request.stops, (std::vector<std::string>{"a"}));
  EXPECT_EQ(request.stop_tokens, (std::vector<Token>{4}));
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.priority, -1);
  const ApiRequest chat = accepted(
      R"(, "max_tokens": 5, "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 2,
          "chat_template_kwargs": {"enable_thinking": false}, "top_k": -1)",
      true);
  EXPECT_EQ(chat.tokens_max, 9U);
  EXPECT_EQ(chat.top_logprobs, 2U);
  EXPECT_EQ(chat.sampling.top_k, 0U);
  EXPECT_EQ(chat.template_variables.at("enable_thinking"), false);
}

TEST(ApiRequest, TakesAPromptOfTextOrTokenIdsAndListsOfBoth) {
  using Ids = std::vector<Token>;
  const auto prompts = [](const std::string& prompt) {
    const auto read = parse_request(R"({"model": "m", "n": 2, "prompt": )" + prompt + "}", false);
    EXPECT_TRUE(read) << prompt;
    EXPECT_EQ(read->choices(), 2 * read->prompts.size());
    return read->prompts;
  };
  EXPECT_EQ(std::get<std::string>(prompts(R"("x")").at(0)), "x");
  EXPECT_EQ(std::get<Ids>(prompts("[1, 2]").at(0)), (Ids{1, 2}));
  EXPECT_EQ(std::get<std::string>(prompts(R"(["x"])").at(0)), "x");
  EXPECT_EQ(std::get<Ids>(prompts("[[3]]").at(0)), (Ids{3}));
  const auto texts = prompts(R"(["x", "y"])");
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(std::get<std::string>(texts[1]), "y");
  const auto lists = prompts("[[1, 2], [3]]");
  ASSERT_EQ(lists.size(), 2U);
  EXPECT_EQ(std::get<Ids>(lists[1]), (Ids{3}));
  std::string many = "[\"x\"";
  for (std::size_t i = 0; i < kPromptsMax; ++i) many += ", \"x\"";
  for (const std::string& prompt :
       {std::string("[]"), std::string("3"), std::string("null"), std::string("[1, \"x\"]"),
        std::string("[-1]"), std::string("[1.5]"), std::string("[[]]"), std::string("[[[1]]]"),
        std::string("[\"x\", null]"), many + "]"}) {
    const auto none = parse_request(R"({"model": "m", "prompt": )" + prompt + "}", false);
    ASSERT_FALSE(none) << prompt;
    EXPECT_EQ(none.error().param, "prompt");
  }
}

TEST(ApiRequest, RefusesByFieldWhatItCannotDo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "temperature": -1)", "temperature"},
      {R"(, "temperature": "hot")", "temperature"},
      {R"(, "temperature": 1e400)", ""},
      {R"(, "top_p": 0)", "top_p"},
      {R"(, "n": 0)", "n"},
      {R"(, "n": 17)", "n"},
      {R"(, "n": 18446744073709551615)", "n"},
      {R"(, "max_tokens": -1)", "max_tokens"},
      {R"(, "stop": [""])", "stop"},
      {R"(, "stop": 3)", "stop"},
      {R"(, "logprobs": 21)", "logprobs"},
      {R"(, "suffix": "x")", "suffix"},
      {R"(, "presence_penalty": 0.1)", "presence_penalty"},
      {R"(, "logit_bias": {"1": 2})", "logit_bias"},
      {R"(, "best_of": 2)", "best_of"},
      {R"(, "use_beam_search": true)", "temperature"},
      {R"(, "stream_options": {"include_usage": true})", "stream_options"},
      {R"(, "stream": true, "stream_options": {"x": 1})", "stream_options"},
      {R"(, "colour": "red")", "colour"},
      {R"(, "model": "")", "model"},
  };
  for (const auto& [more, field] : cases) EXPECT_EQ(refused(more), field) << more;
  const std::pair<const char*, const char*> chats[] = {
      {R"(, "max_tokens": 0)", "max_tokens"},
      {R"(, "tools": [{}])", "tools"},
      {R"(, "audio": {"voice": "x"})", "audio"},
      {R"(, "modalities": ["text", "audio"])", "modalities"},
      {R"(, "reasoning_effort": "high")", "reasoning_effort"},
      {R"(, "function_call": {"name": "f"})", "function_call"},
      {R"(, "echo": true)", "echo"},
      {R"(, "tool_choice": "required")", "tool_choice"},
      {R"(, "response_format": {"type": "json_object"})", "response_format"},
      {R"(, "top_logprobs": 2)", "top_logprobs"},
      {R"(, "chat_template_kwargs": 3)", "chat_template_kwargs"},
      {R"(, "chat_template": "x")", "chat_template"},
      {R"(, "messages": [])", "messages"},
      {R"(, "messages": [{"content": "x"}])", "messages"},
      {R"(, "messages": [{"role": "user"}])", "messages"},
      {R"(, "messages": [{"role": "user", "content": [{"type": "image_url"}]}])", "messages"},
  };
  for (const auto& [more, field] : chats) EXPECT_EQ(refused(more, true), field) << more;
  EXPECT_EQ(accepted(R"(, "presence_penalty": 0, "logit_bias": {}, "best_of": 1, "suffix": null)")
                .answers,
            1U);
}

TEST(ApiRequest, TakesWhatAsksForNothing) {
  const char* const neutral[] = {
      R"("audio": null)",
      R"("modalities": ["text"])",
      R"("modalities": null)",
      R"("store": false)",
      R"("store": null)",
      R"("metadata": {})",
      R"("metadata": null)",
      R"("logit_bias": {})",
      R"("logit_bias": null)",
      R"("n": 1)",
      R"("n": null)",
      R"("service_tier": "auto")",
      R"("parallel_tool_calls": true)",
      R"("tools": [])",
      R"("tools": null)",
      R"("tool_choice": "none")",
      R"("tool_choice": "auto")",
      R"("tool_choice": null)",
      R"("response_format": {"type": "text"})",
      R"("response_format": null)",
      R"("reasoning_effort": null)",
      R"("reasoning_effort": "none")",
      R"("verbosity": "medium")",
      R"("verbosity": null)",
      R"("stream_options": null)",
      R"("stream_options": {"include_usage": false})",
      R"("function_call": null)",
      R"("function_call": "none")",
      R"("functions": [])",
      R"("prediction": null)",
      R"("web_search_options": null)",
      R"("prompt_cache_key": "k")",
      R"("prompt_cache_retention": null)",
      R"("safety_identifier": null)",
      R"("user": null)",
      R"("stop": null)",
      R"("stop": [])",
      R"("seed": null)",
      R"("temperature": null)",
      R"("top_p": null)",
      R"("top_logprobs": null)",
      R"("logprobs": null)",
      R"("presence_penalty": null)",
      R"("frequency_penalty": 0.0)",
      R"("max_tokens": null)",
      R"("max_completion_tokens": null)",
      R"("suffix": null)",
      R"("suffix": "")",
      R"("best_of": null)",
      R"("best_of": 1)",
      R"("echo": false)",
      R"("echo": null)",
      R"("stream": null)",
      R"("repetition_penalty": 1.0)",
      R"("min_p": 0.0)",
      R"("guided_json": null)",
      R"("prompt_logprobs": null)",
      R"("truncate_prompt_tokens": null)",
  };
  for (const char* field : neutral) {
    for (const bool chat : {false, true}) {
      EXPECT_EQ(refused(std::string(", ") + field, chat), "accepted") << field << chat;
    }
  }
}

TEST(ApiRequest, MessagesThatClientsSendBackAsTheyGotThemAreTaken) {
  const auto chat = parse_request(
      R"({"model": "m", "messages": [{"role": "user", "content": "x", "name": null},
          {"role": "assistant", "content": null, "refusal": null, "audio": null,
           "function_call": null, "tool_calls": [{"id": "1"}]},
          {"role": "assistant", "tool_calls": [{"id": "2"}]},
          {"role": "assistant", "content": "y", "tool_calls": []}]})",
      true);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->messages.dump(), R"([{"role":"user","content":"x"},)"
                                   R"({"role":"assistant","tool_calls":[{"id":"1"}],"content":""},)"
                                   R"({"role":"assistant","tool_calls":[{"id":"2"}],"content":""},)"
                                   R"({"role":"assistant","content":"y"}])");
  EXPECT_EQ(refused(R"(, "messages": [{"role": "assistant", "content": null}])", true), "messages");
}

TEST(ApiRequest, JoinsPartsOfTextAndKeepsTheOrderOfKeys) {
  const auto chat = parse_request(
      R"({"model": "m", "messages": [{"role": "user", "z": 1, "a": 2,
          "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]})",
      true);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->messages.dump(), R"([{"role":"user","z":1,"a":2,"content":"one\ntwo"}])");
}

TEST(ApiRequest, RefusesBodiesThatAreNoObjectsOrTooDeep) {
  for (const std::string body : {"", "{", "[]", "3", "{\"a\": 1}x", "\xFF{}"}) {
    EXPECT_FALSE(parse_request(body, false)) << body;
  }
  EXPECT_FALSE(parse_request(std::string(1U << 20U, '['), false));
  const std::string deep =
      R"({"model": "m", "prompt": )" + std::string(1000, '[') + std::string(1000, ']') + "}";
  const auto refused = parse_request(deep, false);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("deep"), std::string::npos);
}

// The library's own parser walks over all earlier keys of an object for each: half an hour for the
// largest body.
TEST(ApiRequest, ABodyOfKeysIsRefusedAtTheFirstTooMany) {
  std::string keys = "{";
  for (int i = 0; i < 80'000; ++i) keys += "\"k" + std::to_string(i) + "\":0,";
  const std::string largest = keys + "\"model\":" + std::string(kBodyBytesMax, 'x');
  const auto many = parse_request(largest, false);
  ASSERT_FALSE(many);
  EXPECT_NE(many.error().message.find("more than 1024 keys"), std::string::npos)
      << many.error().message;

  std::string objects = R"({"model": "m", "messages": [)";
  for (std::size_t i = 0; i < kJsonPartsMax; ++i) objects += "{},";
  EXPECT_NE(parse_request(objects + "{}]}", true).error().message.find("lists and objects"),
            std::string::npos);
  std::string values = R"({"model": "m", "prompt": [)";
  for (std::size_t i = 0; i < kJsonValuesMax; ++i) values += "7,";
  EXPECT_NE(parse_request(values + "7]}", false).error().message.find("values"), std::string::npos);
  const auto twice =
      parse_request(R"({"model": "m", "prompt": "x", "model": {"a": [1]}, "model": "n"})", false);
  ASSERT_TRUE(twice) << twice.error().message;
  EXPECT_EQ(twice->model, "n") << "the last counts";
}

TEST(ApiRequest, AnErrorRepeatsLittleOfWhatWasSent) {
  const std::string much(1U << 20U, 'x');
  for (const std::string& body :
       {"{\"" + much + "\": 1}", R"({"n": ")" + much + "\"}", "{\"n\": " + much + "}",
        R"({"n": 3, "n)" + much + R"(": 1, "n)" + much + R"(": 1})"}) {
    const auto read = parse_request(body, false);
    ASSERT_FALSE(read);
    EXPECT_LT(read.error().message.size(), 400U);
  }
}

TEST(Path, IsWhatATargetNames) {
  EXPECT_EQ(path_of("/v1/models/a%2Fb%20c?x=%2F"), "/v1/models/a/b c");
  EXPECT_EQ(path_of("/health#x"), "/health");
  EXPECT_EQ(path_of("http://host:8000/v1/models?x"), "/v1/models");
  EXPECT_EQ(path_of("http://host"), "/");
  EXPECT_EQ(path_of("/a%zz%4"), "/a%zz%4");
  EXPECT_EQ(path_of("/100%25"), "/100%");
  EXPECT_EQ(path_of("*"), "*");
}

TEST(ApiError, HasTheShapeOfTheApi) {
  EXPECT_EQ(
      bad_request("n", "n is wrong").body().dump(),
      R"({"error":{"message":"n is wrong","type":"invalid_request_error","param":"n","code":null}})");
  EXPECT_EQ(to_api(make_error(Errc::refused, "later")).status, 429U);
  EXPECT_EQ(to_api(make_error(Errc::no_space, "too long")).code, "context_length_exceeded");
  EXPECT_EQ(to_api(make_error(Errc::io, "broken")).status, 500U);
}

TEST(ApiError, NoPathOfTheServersReachesAClient) {
  const Error error = make_error(Errc::io, "/models/secret/model.safetensors: cannot be read");
  EXPECT_EQ(to_api(error).message.find('/'), std::string::npos);
  EXPECT_EQ(to_api_once_taken(error).message.find('/'), std::string::npos);
  const Error full = make_error(Errc::no_space, "/run/kvtier/kvtierd.sock is full");
  EXPECT_EQ(to_api_once_taken(full).message.find('/'), std::string::npos);
}

TEST(ApiError, AGpuWithoutMemoryIsNoFaultOfThePrompt) {
  const ApiError full = to_api_once_taken(make_error(Errc::no_space, "a step on GPU 0"));
  EXPECT_EQ(full.status, 503U);
  EXPECT_EQ(full.code, "");
  EXPECT_EQ(to_api_once_taken(make_error(Errc::invalid, "a step")).status, 500U);
}

}  // namespace
}  // namespace kvtier::engine::server
