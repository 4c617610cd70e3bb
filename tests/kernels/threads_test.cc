#include <thread>

#include "tests/kernels/isa.h"

namespace kvtier::kernels {
namespace {

class Threads : public EveryIsa {};
KVTIER_FOR_EVERY_ISA(Threads);

TEST_P(Threads, SeveralEnginesMayComputeAtOnce) {
  constexpr std::size_t kRows = 128;
  constexpr std::size_t kN = 200;
  constexpr std::size_t kK = 128;
  const auto x = random_floats(kRows * kK, 1);
  const auto w = random_floats(kN * kK, 2);
  std::vector<float> expected(kRows * kN);
  set_cpu_threads(1);
  kernels().gemm(x.data(), w.data(), DType::f32, nullptr, expected.data(), kRows, kN, kK);
  set_cpu_threads(3);
  std::vector<std::vector<float>> outs(4, std::vector<float>(kRows * kN));
  std::vector<std::thread> engines;
  for (auto& out : outs) {
    engines.emplace_back([&, this] {
      for (int i = 0; i < 20; ++i) {
        kernels().gemm(x.data(), w.data(), DType::f32, nullptr, out.data(), kRows, kN, kK);
      }
    });
  }
  for (auto& engine : engines) engine.join();
  for (const auto& out : outs) EXPECT_TRUE(same_bits(out, expected));
}

TEST(Dispatch, TheBestImplementationIsOneOfTheNamedOnes) {
  EXPECT_EQ(cpu_kernels_named(cpu_kernels().name), &cpu_kernels());
  EXPECT_EQ(cpu_kernels_named("sparc"), nullptr);
  EXPECT_NE(cpu_kernels_named("portable"), nullptr);
}

}  // namespace
}  // namespace kvtier::kernels
