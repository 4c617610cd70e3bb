// An engine on the first GPU with its own client of a daemon, or without a cache: then its answers
// are right by definition.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/generator.h"
#include "kvtier/client.h"
#include "tests/engine/gpu/gpu_engine.h"

namespace kvtier::e2e {

inline constexpr StorageFormat kGpuFormat = StorageFormat::fp8_e4m3;

class GpuEngineUnderTest {
 public:
  // No cache where `socket` is empty.
  GpuEngineUnderTest(const engine::test::TestModel& model, const std::string& socket)
      : ns_(model.ns(kGpuFormat)), engine_(model, kGpuFormat, {.rows_max = 2048}, 1024) {
    if (!socket.empty()) {
      client_ = Client::start({.cuda_device = 0,
                               .socket = socket,
                               .name = "gpu-test",
                               .slots_ahead = 256,
                               .write_backs_queued_max = 4096})
                    .value();
      const auto give_up = Clock::now() + std::chrono::seconds(30);
      KVTIER_CHECK(client_->wait_connected(give_up).has_value());
      cache_ = client_->open(ns_).value();
      flush();
    }
    generator_.emplace(*engine_.model, *engine_.pool, id_of(ns_), cache_.get(),
                       engine::LoadPolicy::always_load);
  }

  engine::GenerateResult answer(const std::vector<Token>& prompt, std::uint32_t tokens_max) {
    return generator_
        ->generate({.prompt = prompt,
                    .tokens_max = tokens_max,
                    .cache_deadline = std::chrono::milliseconds(10'000)})
        .value();
  }
  // Until its client has been connected so many times, and has slots at hand.
  void wait_connects(std::uint64_t connects) {
    const auto give_up = Clock::now() + std::chrono::seconds(60);
    while (client_->stats().connects < connects) KVTIER_CHECK(Clock::now() < give_up);
    flush();
  }
  void flush() {
    KVTIER_CHECK(client_->flush(Clock::now() + std::chrono::seconds(60)).has_value());
  }

  // The payloads of the complete blocks of `prompt`, computed; all but header and padding.
  std::vector<std::byte> computed_payloads(const std::vector<Token>& prompt) {
    engine::Sequence sequence(*engine_.pool, id_of(ns_), length(prompt));
    const engine::StepInput input{&sequence, prompt, 1};
    std::vector<float> logits(engine_.model->config().vocab_size);
    KVTIER_CHECK(engine_.model->step({&input, 1}, logits).has_value());
    return payloads(sequence.records().first(blocks_matchable(prompt.size(), 16)));
  }
  // The same as the cache has them: of as many leading blocks as it has.
  std::vector<std::byte> cached_payloads(const std::vector<Token>& prompt) {
    const auto give_up = Clock::now() + std::chrono::seconds(10);
    engine::Sequence sequence(*engine_.pool, id_of(ns_), length(prompt));
    KVTIER_CHECK(sequence.reserve(length(prompt)).has_value());
    auto lease = cache_->lease(prompt, cache_->match(prompt).blocks, give_up);
    if (!lease || lease->blocks() == 0) return {};
    Pages pages;
    pages.records = sequence.records().first(lease->wait_ready(give_up));
    if (pages.records.empty()) return {};
    auto load = lease->load_into(pages, engine_.model->stream());
    if (!load) return {};
    return payloads(sequence.records().first(load->finish()));
  }

  // How much likelier one token is than another after `tokens`, in logits.
  double logit_gap(const std::vector<Token>& tokens, Token one, Token other) {
    const auto logits = engine::test::logits_of(*engine_.model, *engine_.pool, tokens, 2048, 1);
    return std::abs(static_cast<double>(logits[one]) - logits[other]);
  }

 private:
  static std::uint32_t length(const std::vector<Token>& tokens) {
    return static_cast<std::uint32_t>(tokens.size());
  }
  std::vector<std::byte> payloads(std::span<std::byte* const> records) const {
    const RecordLayout& layout = engine_.pool->layout();
    const std::size_t bytes = layout.header_bytes - layout.scales_offset + layout.payload_bytes;
    std::vector<std::byte> all(records.size() * bytes);
    for (std::size_t i = 0; i < records.size(); ++i) {
      KVTIER_CHECK(cudaMemcpy(all.data() + i * bytes, records[i] + layout.scales_offset, bytes,
                              cudaMemcpyDeviceToHost) == cudaSuccess);
    }
    const std::size_t scales = std::size_t{layout.layers} * 2 * layout.kv_heads * sizeof(float);
    for (std::size_t i = 0; i < records.size(); ++i) {  // what is behind the scales says nothing
      std::fill(all.begin() + static_cast<std::ptrdiff_t>(i * bytes + scales),
                all.begin() + static_cast<std::ptrdiff_t>(i * bytes + layout.header_bytes -
                                                          layout.scales_offset),
                std::byte{});
    }
    return all;
  }

  Namespace ns_;
  engine::test::GpuEngine engine_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Cache> cache_;
  std::optional<engine::Generator> generator_;
};

// Tokens of a text the bundled model knows well, from somewhere in it.
inline std::vector<Token> text_tokens(std::size_t from, std::size_t count) {
  static const std::vector<Token> text =
      engine::test::read_golden(engine::test::kBundled[1]).tokens;
  KVTIER_CHECK(from + count <= text.size());
  return {text.begin() + static_cast<std::ptrdiff_t>(from),
          text.begin() + static_cast<std::ptrdiff_t>(from + count)};
}

// What the process that is killed writes back.
inline std::vector<Token> victim_prompt(std::uint64_t victim, std::uint64_t number,
                                        std::uint32_t vocab) {
  return engine::test::random_tokens(1500, vocab, 1'000'000 + victim * 1000 + number);
}

}  // namespace kvtier::e2e
