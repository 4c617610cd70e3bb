#include "tests/gpu/attention/seen_sequence.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/kernels/isa.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr double kHalfStep = 1.0 / 256;  // of BF16, relative, at most

std::vector<std::uint32_t> all_positions(std::size_t tokens) {
  std::vector<std::uint32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0U);
  return positions;
}

}  // namespace

void GpuAttention::SetUp() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU here";
}

Bf16 to_bf16(float value) {
  return __float2bfloat16_rn(value);
}
float to_float(Bf16 value) {
  return __bfloat162float(value);
}

std::vector<float> random_bf16(std::size_t count, unsigned seed, float deviation) {
  auto values = random_floats(count, seed, deviation);
  for (float& value : values) value = to_float(to_bf16(value));
  return values;
}

SeenSequence::SeenSequence(const KvShape& kv_shape, std::size_t token_count, unsigned seed)
    : shape(kv_shape), tokens(token_count), sequence(kv_shape, token_count, seed) {
  const std::size_t dim = shape.head_dim_k;
  const std::size_t complete = tokens / kTileTokens * kTileTokens;
  view = sequence.view(all_positions(tokens));
  for (const bool v : {false, true}) {
    auto& exact = v ? exact_v : exact_k;
    auto& stored = v ? stored_v : stored_k;
    exact.resize(shape.kv_heads * tokens * dim);
    stored.assign(exact.size(), std::numeric_limits<float>::quiet_NaN());
    for (std::size_t block = 0; block * kTileTokens < tokens; ++block) {
      for (float& value : sequence.exact_page(v, block)) value = to_float(to_bf16(value));
    }
    for (std::size_t head = 0; head < shape.kv_heads; ++head) {
      for (std::size_t token = 0; token < tokens; ++token) {
        const std::size_t block = token / kTileTokens;
        const std::size_t in_block = token % kTileTokens;
        for (std::size_t d = 0; d < dim; ++d) {
          const std::size_t in_page = (head * kTileTokens + in_block) * dim + d;
          exact[at(head, token) + d] = sequence.exact_page(v, block)[in_page];
          if (token >= complete) continue;
          stored[at(head, token) + d] =
              stored_value(shape.layout(), record(block), KvSequence::kLayer, v, head, in_block, d);
        }
      }
    }
  }
}

void SeenSequence::round_stored() {
  for (auto* values : {&stored_k, &stored_v}) {
    for (float& value : *values) value = to_float(to_bf16(value));
  }
}

std::vector<Bf16> SeenSequence::page(std::size_t block, std::size_t tokens_known) {
  std::vector<Bf16> page;
  for (const bool v : {false, true}) {
    const auto& values = sequence.exact_page(v, block);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool known = i / shape.head_dim_k % kTileTokens < tokens_known;
      page.push_back(to_bf16(known ? values[i] : std::numeric_limits<float>::quiet_NaN()));
    }
  }
  return page;
}

bool SeenTokens::keeps(std::uint32_t last, std::size_t block) const {
  for (std::size_t token = block * kTileTokens; token < (block + 1) * kTileTokens; ++token) {
    if (sees(last, token)) return true;
  }
  return false;
}

void expect_attention(const SeenSequence& sequence, std::uint32_t position, std::size_t kv_head,
                      const float* q, float scale, const Bf16* out, const SeenTokens& rule,
                      const float* sink_q) {
  const std::size_t dim = sequence.shape.head_dim_k;
  const std::size_t own = position / kTileTokens * kTileTokens;
  const auto seen = [&](bool v, std::size_t token) {
    const auto& values = token < own ? (v ? sequence.stored_v : sequence.stored_k)
                                     : (v ? sequence.exact_v : sequence.exact_k);
    return values.data() + sequence.at(kv_head, token);
  };
  std::vector<double> weights(position + 1);
  for (std::size_t token = 0; token <= position; ++token) {
    weights[token] = -INFINITY;
    if (!rule.sees(position, token)) continue;
    const float* k = seen(false, token);
    const float* met = token < rule.sinks ? sink_q : q;
    double dot = 0;
    for (std::size_t d = 0; d < dim; ++d) dot += double{met[d]} * k[d];
    weights[token] = dot * scale;
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& w : weights) w = std::exp(w - largest);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);

  std::vector<double> expected(dim);
  std::vector<double> squares(dim);
  for (std::size_t token = 0; token <= position; ++token) {
    const float* v = seen(true, token);
    const double weight = weights[token] / total;
    for (std::size_t d = 0; d < dim; ++d) {
      expected[d] += weight * v[d];
      squares[d] += weight * weight * v[d] * v[d];
    }
  }
  for (std::size_t d = 0; d < dim; ++d) {
    const double tolerance = 5 * kHalfStep / std::sqrt(3.0) * std::sqrt(squares[d]) +
                             1.1 * kHalfStep * std::abs(expected[d]) + 2e-6;
    ASSERT_NEAR(to_float(out[d]), expected[d], tolerance)
        << "position " << position << " kv head " << kv_head << " dim " << d;
  }
}

}  // namespace kvtier::kernels::cuda
