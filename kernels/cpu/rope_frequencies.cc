#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/check.h"
#include "kernels/table.h"

namespace kvtier::kernels {
namespace {

// transformers, modeling_rope_utils.py, _compute_llama3_parameters.
double llama3_scaled(double frequency, const RopeScaling& scaling) {
  const double original = scaling.original_max_positions;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// transformers, modeling_rope_utils.py, _compute_yarn_parameters: the share of dimension i that is
// kept as it is.
double yarn_kept(std::uint32_t i, std::uint32_t head_dim, double theta,
                 const RopeScaling& scaling) {
  // The dimension, not whole, that turns `rotations` times.
  const auto dimension = [&](double rotations) {
    return head_dim *
           std::log(scaling.original_max_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = dimension(scaling.beta_fast);
  double high = dimension(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  return 1 - std::clamp((i - low) / (high - low), 0.0, 1.0);
}

double scaled(std::uint32_t i, std::uint32_t head_dim, double theta, const RopeScaling& scaling) {
  const double plain = std::pow(theta, -2.0 * i / head_dim);
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return plain;
    case RopeScaling::Kind::linear:
      return plain / scaling.factor;
    case RopeScaling::Kind::llama3:
      return llama3_scaled(plain, scaling);
    case RopeScaling::Kind::yarn: {
      const double kept = yarn_kept(i, head_dim, theta, scaling);
      return plain / scaling.factor * (1 - kept) + plain * kept;
    }
  }
  return plain;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(std::uint32_t head_dim, double theta,
                                            const RopeScaling& scaling) {
  KVTIER_CHECK(head_dim % 2 == 0 && theta > 0);
  std::vector<float> frequencies(head_dim / 2);
  for (std::uint32_t i = 0; i < head_dim / 2; ++i) {
    frequencies[i] = static_cast<float>(scaled(i, head_dim, theta, scaling));
  }
  return frequencies;
}

}  // namespace kvtier::kernels
