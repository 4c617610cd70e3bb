// The entry of a libFuzzer program for the target that KVTIER_FUZZ_TARGET names. With
// KVTIER_FUZZ_SEEDS=DIR the seeds are written there first: give DIR as the corpus.
#include <spdlog/spdlog.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/targets.h"

namespace {

const kvtier::fuzz::Target& target() {
  static const kvtier::fuzz::Target chosen = kvtier::fuzz::KVTIER_FUZZ_TARGET();
  return chosen;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  const char* folder = std::getenv("KVTIER_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const auto& seed : target().seeds()) {
    std::ofstream file(std::string(folder) + "/seed-" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target().run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
