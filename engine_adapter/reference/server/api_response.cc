#include "engine_adapter/reference/server/api_response.h"

#include <algorithm>
#include <iterator>

namespace kvtier::engine::server {
namespace {

const char* finish_reason_of(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::end_token:
      return "stop";
    case FinishReason::tokens_max:
    case FinishReason::context_full:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "error";
  }
  return "error";
}

OrderedJson bytes_of(std::string_view text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

std::size_t characters_in(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80;
  }));
}

void append(Piece& answer, Piece next) {
  answer.text += next.text;
  if (answer.tokens.empty()) {
    answer.tokens = std::move(next.tokens);
  } else {
    answer.tokens.insert(answer.tokens.end(), std::make_move_iterator(next.tokens.begin()),
                         std::make_move_iterator(next.tokens.end()));
  }
  if (!next.finish_reason.empty()) answer.finish_reason = std::move(next.finish_reason);
  if (next.prompt_tokens == 0) return;
  answer.prompt_tokens = next.prompt_tokens;
  answer.prompt_added = next.prompt_added;
  answer.prompt_characters = next.prompt_characters;
}

Answers::Answers(const ApiRequest& request, const Tokenizer& tokenizer) : request_(request) {
  for (std::uint32_t i = 0; i < request.choices(); ++i) {
    samples_.push_back({AnswerText(tokenizer, request.stops), {}});
  }
}

Piece Answers::take(std::uint32_t sample, std::string text) {
  Piece piece{.sample = sample, .text = std::move(text), .tokens = {}, .finish_reason = {}};
  piece.tokens.swap(samples_[sample].waiting);
  return piece;
}

std::optional<Piece> Answers::token(std::uint32_t sample, const ChosenToken& chosen) {
  Sample& state = samples_[sample];
  if (state.ended) return {};
  std::string text = state.text.push(chosen.token);
  if (request_.logprobs) state.waiting.push_back(chosen);
  if (state.text.stopped()) {
    state.ended = true;
    Piece piece = take(sample, std::move(text));
    piece.finish_reason = "stop";
    return piece;
  }
  if (text.empty()) return {};
  return take(sample, std::move(text));
}

std::optional<Piece> Answers::finished(std::uint32_t sample, FinishReason reason) {
  Sample& state = samples_[sample];
  if (state.ended) return {};
  state.ended = true;
  Piece piece = take(sample, state.text.finish());
  piece.finish_reason = state.text.stopped() ? "stop" : finish_reason_of(reason);
  return piece;
}

bool Answers::all_ended(std::uint32_t first, std::uint32_t count) const noexcept {
  const auto begin = samples_.begin() + first;
  return std::all_of(begin, begin + count, [](const Sample& sample) { return sample.ended; });
}

std::uint32_t Answers::completion_tokens() const noexcept {
  std::uint32_t sum = 0;
  for (const Sample& sample : samples_) sum += sample.text.tokens();
  return sum;
}

OrderedJson ResponseWriter::envelope(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

std::string ResponseWriter::text_of(Token token) const {
  Utf8Stream repaired;
  const std::string text = repaired.push(tokenizer_.bytes_of(token));
  return text + repaired.finish();
}

OrderedJson ResponseWriter::chat_logprobs(const Piece& piece) const {
  OrderedJson content = OrderedJson::array();
  const auto entry = [this](Token token, float logprob) {
    return OrderedJson{{"token", text_of(token)},
                       {"logprob", logprob},
                       {"bytes", bytes_of(tokenizer_.bytes_of(token))}};
  };
  for (const ChosenToken& chosen : piece.tokens) {
    OrderedJson one = entry(chosen.token, chosen.logprob);
    one["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& other : chosen.top) {
      one["top_logprobs"].push_back(entry(other.token, other.logprob));
    }
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

OrderedJson ResponseWriter::logprobs(const Piece& piece) {
  if (!request_.logprobs || piece.tokens.empty()) return nullptr;
  if (request_.chat) return chat_logprobs(piece);
  OrderedJson starts = OrderedJson::array();
  OrderedJson logprobs = OrderedJson::array();
  OrderedJson texts = OrderedJson::array();
  OrderedJson tops = OrderedJson::array();
  for (const std::size_t offset : offsets(piece)) starts.push_back(offset);
  for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
    const ChosenToken& chosen = piece.tokens[i];
    const std::string text = text_of(chosen.token);
    texts.push_back(text);
    if (i == 0 && piece.prompt_tokens > 0) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(chosen.logprob);
    // Of tokens that are written alike the likeliest stands for all.
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& other : chosen.top) top.emplace(text_of(other.token), other.logprob);
    if (request_.top_logprobs > 0) top.emplace(text, chosen.logprob);
    tops.push_back(std::move(top));
  }
  return {{"text_offset", std::move(starts)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(texts)},
          {"top_logprobs", std::move(tops)}};
}

// Characters of the answer's text before each token of the piece.
std::vector<std::size_t> ResponseWriter::offsets(const Piece& piece) {
  places_.resize(std::max<std::size_t>(places_.size(), request_.choices()));
  Place& place = places_[piece.sample];
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
    found.push_back(place.characters);
    const Token token = piece.tokens[i].token;
    const bool in_prompt = i < piece.prompt_tokens;
    const bool silent = in_prompt ? i < piece.prompt_added : tokenizer_.is_special(token);
    if (!silent) place.characters += characters_in(place.stream.push(tokenizer_.bytes_of(token)));
    if (i + 1 != piece.prompt_tokens) continue;
    // A space that encoding puts before a text is no part of it.
    const std::size_t more = place.characters - std::min(place.characters, piece.prompt_characters);
    for (std::size_t& offset : found) offset -= std::min(offset, more);
    place = {Utf8Stream(), piece.prompt_characters};
  }
  return found;
}

OrderedJson ResponseWriter::opening(std::uint32_t sample) const {
  OrderedJson out = envelope("chat.completion.chunk");
  out["choices"] = OrderedJson::array({{{"index", sample},
                                        {"delta", {{"role", "assistant"}, {"content", ""}}},
                                        {"logprobs", nullptr},
                                        {"finish_reason", nullptr}}});
  return out;
}

OrderedJson ResponseWriter::chunk(const Piece& piece) {
  OrderedJson choice{{"index", piece.sample}};
  if (request_.chat) {
    choice["delta"] = OrderedJson::object();
    if (!piece.text.empty()) choice["delta"]["content"] = piece.text;
  } else {
    choice["text"] = piece.text;
  }
  choice["logprobs"] = logprobs(piece);
  choice["finish_reason"] =
      piece.finish_reason.empty() ? OrderedJson(nullptr) : OrderedJson(piece.finish_reason);
  OrderedJson out = envelope(request_.chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = OrderedJson::array();
  out["choices"].push_back(std::move(choice));
  if (request_.include_usage) out["usage"] = nullptr;
  return out;
}

OrderedJson ResponseWriter::usage_chunk(const OrderedJson& usage) const {
  OrderedJson out = envelope(request_.chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = OrderedJson::array();
  out["usage"] = usage;
  return out;
}

OrderedJson ResponseWriter::whole(const std::vector<Piece>& answers, const OrderedJson& usage) {
  OrderedJson out = envelope(request_.chat ? "chat.completion" : "text_completion");
  out["choices"] = OrderedJson::array();
  for (const Piece& piece : answers) {
    OrderedJson choice{{"index", piece.sample}};
    if (request_.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", piece.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = piece.text;
    }
    choice["logprobs"] = logprobs(piece);
    choice["finish_reason"] = piece.finish_reason;
    out["choices"].push_back(std::move(choice));
  }
  out["usage"] = usage;
  return out;
}

OrderedJson ResponseWriter::usage(std::uint32_t prompt_tokens, std::uint32_t cached_tokens,
                                  std::uint32_t completion_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

}  // namespace kvtier::engine::server
