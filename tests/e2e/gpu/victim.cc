// An engine that computes prompts and writes them back until it is killed: gpu_e2e_victim SOCKET
// NUMBER. Says "ready" when it has written one.
#include <cstdio>
#include <cstdlib>

#include "tests/e2e/gpu/gpu_engine_under_test.h"

int main(int, char** argv) {
  using namespace kvtier;
  const auto model = engine::test::load_checkpoint(engine::test::kBundled[0]);
  KVTIER_CHECK(model != nullptr);
  e2e::GpuEngineUnderTest engine(*model, argv[1]);
  const std::uint64_t victim = std::strtoull(argv[2], nullptr, 10);
  for (std::uint64_t number = 0; number < 1000; ++number) {
    (void)engine.answer(e2e::victim_prompt(victim, number, model->config.vocab_size), 1);
    if (number == 0) {
      std::printf("ready\n");
      std::fflush(stdout);
    }
  }
}
