// Runs a test once for each CPU implementation; those this processor lacks are skipped.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/table.h"

namespace kvtier::kernels {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

class EveryIsa : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = cpu_kernels_named(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this processor has no " << GetParam();
  }
  void TearDown() override { set_cpu_threads(0); }

  const KernelTable& kernels() const { return *kernels_; }
  static const KernelTable& portable() { return *cpu_kernels_named("portable"); }

 private:
  const KernelTable* kernels_ = nullptr;
};

#define KVTIER_FOR_EVERY_ISA(suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, testing::Values("portable", "avx2", "avx512"), \
                           [](const auto& param) { return std::string(param.param); })

inline std::vector<float> random_floats(std::size_t count, unsigned seed, float deviation = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// `values` as elements of `type`.
inline std::vector<std::byte> packed(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * bytes_of(type));
  cpu_kernels_named("portable")
      ->convert(values.data(), DType::f32, bytes.data(), type, values.size());
  return bytes;
}

inline std::vector<float> unpacked(const std::vector<std::byte>& bytes, DType type) {
  std::vector<float> values(bytes.size() / bytes_of(type));
  cpu_kernels_named("portable")
      ->convert(bytes.data(), type, values.data(), DType::f32, values.size());
  return values;
}

}  // namespace kvtier::kernels
