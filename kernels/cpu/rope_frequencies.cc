#include <cmath>
#include <numbers>

#include "client/base/check.h"
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

double scaled(double frequency, const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return frequency;
    case RopeScaling::Kind::linear:
      return frequency / scaling.factor;
    case RopeScaling::Kind::llama3:
      return llama3_scaled(frequency, scaling);
  }
  return frequency;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(std::uint32_t head_dim, double theta,
                                            const RopeScaling& scaling) {
  KVTIER_CHECK(head_dim % 2 == 0 && theta > 0);
  std::vector<float> frequencies(head_dim / 2);
  for (std::uint32_t i = 0; i < head_dim / 2; ++i) {
    const double plain = std::pow(theta, -2.0 * i / head_dim);
    frequencies[i] = static_cast<float>(scaled(plain, scaling));
  }
  return frequencies;
}

}  // namespace kvtier::kernels
