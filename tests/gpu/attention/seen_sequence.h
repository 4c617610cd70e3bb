// One sequence as attention sees it, in plain arrays, and attention over it in FP64.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/kv_sequence.h"

namespace kvtier::kernels::cuda {

class GpuAttention : public testing::Test {
 protected:
  void SetUp() override;
};

Bf16 to_bf16(float value);
float to_float(Bf16 value);
// Normal numbers that BF16 holds exactly.
std::vector<float> random_bf16(std::size_t count, unsigned seed, float deviation = 1);

// The exact pages hold BF16 values, so that the CPU's table sees what the GPU sees.
struct SeenSequence {
  SeenSequence(const KvShape& kv_shape, std::size_t token_count, unsigned seed);

  const std::byte* record(std::size_t block) { return view.records[block]; }
  // Stored values as gather_stored gives them: rounded to BF16.
  void round_stored();

  // Exact page of one block as the GPU keeps it, [K then V][kv_heads][16][head_dim]; tokens from
  // `tokens_known` of the block on are NaN.
  std::vector<Bf16> page(std::size_t block, std::size_t tokens_known);

  std::size_t at(std::size_t kv_head, std::size_t token) const {
    return (kv_head * tokens + token) * shape.head_dim_k;
  }

  KvShape shape;
  std::size_t tokens;
  KvSequence sequence;
  SequenceKv view;
  std::vector<float> stored_k, stored_v;  // [kv_heads][tokens][head_dim], complete blocks
  std::vector<float> exact_k, exact_v;
};

// What a row sees: its last `window` tokens (0: all) and the first `sinks`.
struct SeenTokens {
  std::uint32_t window = 0, sinks = 0;

  // Whether sinks are met at another place than the window sees them.
  bool beyond(std::uint32_t position) const { return sinks != 0 && position >= sinks + window; }
  bool sees(std::uint32_t position, std::size_t token) const {
    return window == 0 || token < sinks || token + window > position;
  }
  // Whether some later token of the sequence, or the last, sees the block.
  bool keeps(std::uint32_t last, std::size_t block) const;
};

// Fails where `out` [head_dim] of the row at `position` is not attention in FP64, up to what BF16
// weights and a BF16 result can lose: independent roundings of each weight and one of the result.
// `sink_q` meets the sinks.
void expect_attention(const SeenSequence& sequence, std::uint32_t position, std::size_t kv_head,
                      const float* q, float scale, const Bf16* out, const SeenTokens& seen = {},
                      const float* sink_q = nullptr);

}  // namespace kvtier::kernels::cuda
