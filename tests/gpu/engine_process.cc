// An engine without a model, as a process of its own: writes prompts' blocks from a GPU, or loads
// and checks them. Told what to do by its arguments; says what it saw on stdout.
//
//   write SOCKET SEED            prompts SEED * 1000, + 1, ... until it is killed; "started" once
//   read SOCKET SEEDS            random prompts of seeds below SEEDS until stdin ends, then
//                                "right BLOCKS wrong BLOCKS device BLOCKS"
//   once SOCKET PROMPT BLOCKS    one prompt: "right BLOCKS device BLOCKS ms FIRST_HIT"
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>

#include "tests/gpu/records_on_gpu.h"

namespace kvtier::gpu_test {
namespace {

constexpr std::uint32_t kPromptsPerSeed = 40;
constexpr std::size_t kBlocks = 16;

struct Engine {
  explicit Engine(const std::string& socket) : client(client_of(socket, 0)) {
    cache = client->open(test_namespace()).value();
    KVTIER_CHECK(client->wait_connected(soon()).has_value());
  }
  std::shared_ptr<Client> client;
  std::shared_ptr<Cache> cache;
};

int write(const std::string& socket, std::uint32_t seed) {
  Engine engine(socket);
  KVTIER_CHECK(engine.client->flush(soon()).has_value());  // slots are at hand
  std::array<std::unique_ptr<RecordPages>, kPromptsPerSeed> computed;
  for (std::uint32_t i = 0; i < kPromptsPerSeed; ++i) {
    computed[i] = std::make_unique<RecordPages>(engine.cache->layout(), kBlocks);
    computed[i]->compute(engine.cache->ns(), prompt_of(seed * 1000 + i, kBlocks));
  }
  for (std::uint32_t i = 0;; ++i) {
    const auto prompt = prompt_of(seed * 1000 + i % kPromptsPerSeed, kBlocks);
    auto writing = engine.cache->write_back(prompt, 0, computed[i % kPromptsPerSeed]->pages());
    if (i == 0) {
      std::puts("started");
      std::fflush(stdout);
    }
  }
}

struct Checked {
  std::size_t right = 0, wrong = 0, device = 0;
};

// Loads what is cached of a prompt, to its pages or in place, and looks at every byte.
Checked check(Engine& engine, std::uint32_t number, std::size_t blocks, bool in_place) {
  const auto prompt = prompt_of(number, blocks);
  const Match match = engine.cache->match(prompt);
  Checked checked;
  if (match.blocks == 0) return checked;
  auto lease = engine.cache->lease(prompt, match.blocks, soon());
  if (!lease || lease->wait_ready(soon()) == 0) return checked;
  const RecordLayout& layout = engine.cache->layout();
  RecordPages pages(layout, blocks);
  auto load = lease->load_into(pages.pages(in_place));
  if (!load) return checked;
  const std::size_t good = load->finish();
  std::vector<std::byte> bytes(good * layout.record_bytes);
  for (std::size_t i = 0; i < good; ++i) {
    kernels::cuda::check(cudaMemcpy(bytes.data() + i * layout.record_bytes, load->records()[i],
                                    layout.record_bytes, cudaMemcpyDeviceToHost),
                         "cudaMemcpy");
    checked.device += lease->source(static_cast<std::uint32_t>(i)) == Tier::device ? 1 : 0;
  }
  // A lease that ended while we looked proves nothing.
  if (!lease->held()) return {};
  checked.right = right_records(bytes, engine.cache->ns(), prompt, good);
  checked.wrong = good - checked.right;
  return checked;
}

int read(const std::string& socket, std::uint32_t seeds) {
  Engine engine(socket);
  std::mt19937 random(99);
  Checked all;
  pollfd in{STDIN_FILENO, POLLIN, 0};
  std::puts("started");
  std::fflush(stdout);
  while (::poll(&in, 1, 0) == 0) {
    const auto number = random() % seeds * 1000 + random() % kPromptsPerSeed;
    const Checked one =
        check(engine, static_cast<std::uint32_t>(number), kBlocks, random() % 2 == 0);
    all.right += one.right;
    all.wrong += one.wrong;
    all.device += one.device;
  }
  std::printf("right %zu wrong %zu device %zu\n", all.right, all.wrong, all.device);
  return 0;
}

int once(const std::string& socket, std::uint32_t number, std::size_t blocks) {
  Engine engine(socket);
  const auto begin = Clock::now();
  const Checked one = check(engine, number, blocks, true);
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  std::printf("right %zu device %zu ms %.2f\n", one.right, one.device, ms);
  return 0;
}

int run(int argc, char** argv) {
  const auto argument = [&](int i) { return static_cast<std::uint32_t>(std::stoul(argv[i])); };
  const std::string mode = argc > 3 ? argv[1] : "";
  if (mode == "write") return write(argv[2], argument(3));
  if (mode == "read") return read(argv[2], argument(3));
  if (mode == "once" && argc > 4) return once(argv[2], argument(3), argument(4));
  std::fputs("write SOCKET SEED | read SOCKET SEEDS | once SOCKET PROMPT BLOCKS\n", stderr);
  return 2;
}

}  // namespace
}  // namespace kvtier::gpu_test

int main(int argc, char** argv) {
  return kvtier::gpu_test::run(argc, argv);
}
