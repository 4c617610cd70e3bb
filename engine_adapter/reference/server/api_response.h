// What is sent back: the bodies and chunks of both endpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine_adapter/reference/server/answer_text.h"
#include "engine_adapter/reference/server/api_request.h"

namespace kvtier::engine::server {

// A step of one answer.
struct Piece {
  std::uint32_t sample = 0;
  std::string text;
  std::vector<ChosenToken> tokens;  // whose text this is, or soon will be
  std::string finish_reason;        // empty while the answer goes on
  // Of a repeated prompt, whose text and tokens come first: its tokens, of which the first is not
  // predicted by anything; how many of them its text says nothing of; and the characters of that.
  std::size_t prompt_tokens = 0;
  std::size_t prompt_added = 0;
  std::size_t prompt_characters = 0;
};

// Puts `next` behind what there is of its answer.
void append(Piece& answer, Piece next);

std::size_t characters_in(std::string_view text);

// The answers of one request as they grow. One thread.
class Answers {
 public:
  // Both outlive it.
  Answers(const ApiRequest& request, const Tokenizer& tokenizer);

  // None where there is nothing to send yet.
  std::optional<Piece> token(std::uint32_t sample, const ChosenToken& chosen);
  std::optional<Piece> finished(std::uint32_t sample, FinishReason reason);
  // Each of answers first, ..., first + count - 1 is at an end, by itself or by a stop text.
  bool all_ended(std::uint32_t first, std::uint32_t count) const noexcept;
  std::uint32_t completion_tokens() const noexcept;

 private:
  struct Sample {
    AnswerText text;
    std::vector<ChosenToken> waiting;
    bool ended = false;
  };
  Piece take(std::uint32_t sample, std::string text);

  const ApiRequest& request_;
  std::vector<Sample> samples_;
};

class ResponseWriter {
 public:
  ResponseWriter(const ApiRequest& request, const Tokenizer& tokenizer, std::string id,
                 std::string model, std::int64_t created)
      : request_(request),
        tokenizer_(tokenizer),
        id_(std::move(id)),
        model_(std::move(model)),
        created_(created) {}

  // The first chunk of an answer to a chat, which says whose turn it is.
  OrderedJson opening(std::uint32_t sample) const;
  OrderedJson chunk(const Piece& piece);
  OrderedJson usage_chunk(const OrderedJson& usage) const;
  // `answers`: one whole piece each.
  OrderedJson whole(const std::vector<Piece>& answers, const OrderedJson& usage);

  static OrderedJson usage(std::uint32_t prompt_tokens, std::uint32_t cached_tokens,
                           std::uint32_t completion_tokens);

 private:
  OrderedJson envelope(const char* object) const;
  OrderedJson logprobs(const Piece& piece);
  OrderedJson chat_logprobs(const Piece& piece) const;
  std::string text_of(Token token) const;
  std::vector<std::size_t> offsets(const Piece& piece);

  // Where an answer's next token begins.
  struct Place {
    Utf8Stream stream;
    std::size_t characters = 0;
  };

  const ApiRequest& request_;
  const Tokenizer& tokenizer_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
  std::vector<Place> places_;  // by sample
};

}  // namespace kvtier::engine::server
