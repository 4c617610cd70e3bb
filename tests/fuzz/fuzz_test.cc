// The targets with mutations of right inputs, the same ones every time. KVTIER_FUZZ_RUNS=N does N
// times as many; what finds its own way by coverage is the preset `fuzz`.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <random>

#include "tests/fuzz/targets.h"

namespace kvtier::fuzz {
namespace {

class Mutations {
 public:
  Mutations(unsigned seed, std::vector<Bytes> seeds) : random_(seed), seeds_(std::move(seeds)) {}

  Bytes next() {
    Bytes bytes = seeds_[below(seeds_.size())];
    for (std::size_t n = below(6); n-- > 0;) mutate(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }
  std::ptrdiff_t place(const Bytes& bytes) {
    return static_cast<std::ptrdiff_t>(below(bytes.size() + 1));
  }

  void mutate(Bytes& bytes) {
    static constexpr std::uint32_t kEdges[] = {0,          1,          0x7F,     0x80,
                                               0xFF,       0x7FFFFFFF, 1U << 31, 0xFFFFFFFF,
                                               0xFFFFFFF8, 16384,      16385,    1U << 21};
    if (bytes.empty()) return bytes.push_back(std::byte(random_()));
    const std::size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        bytes[at] ^= std::byte(1U << below(8));
        break;
      case 1:
        bytes[at] = std::byte(random_());
        break;
      case 2:  // some bytes again
        bytes.insert(bytes.begin() + place(bytes), std::min<std::size_t>(1 + below(40), 40),
                     bytes[at]);
        break;
      case 3:  // some bytes less
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    bytes.begin() +
                        static_cast<std::ptrdiff_t>(std::min(bytes.size(), at + 1 + below(16))));
        break;
      case 4: {  // a number at the edge of something
        const std::uint32_t edge = kEdges[below(std::size(kEdges))];
        for (std::size_t i = 0; i < 4 && at + i < bytes.size(); ++i)
          bytes[at + i] = std::byte(edge >> 8 * i & 0xFF);
        break;
      }
      case 5: {  // a piece of another input
        const Bytes& other = seeds_[below(seeds_.size())];
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(below(other.size()));
        bytes.insert(bytes.begin() + place(bytes), begin, other.end());
        break;
      }
      default:  // cut off
        bytes.resize(at);
    }
  }

  std::mt19937 random_;
  std::vector<Bytes> seeds_;
};

void run(const Target& target, int times) {
  spdlog::set_level(spdlog::level::off);
  constexpr unsigned kSeed = 20260101;
  const char* factor = std::getenv("KVTIER_FUZZ_RUNS");
  times *= factor == nullptr ? 1 : std::atoi(factor);
  for (const Bytes& seed : target.seeds()) target.run(seed);
  Mutations mutations(kSeed, target.seeds());
  for (int i = 0; i < times; ++i) target.run(mutations.next());
}

// A failure of these is an abort, or a finding of a sanitizer.
TEST(FuzzTest, no_message_ends_more_than_its_own_session) {
  run(frames(), 3000);
}
TEST(FuzzTest, a_configuration_is_refused_or_is_printed_as_it_was_read) {
  run(config(), 4000);
}
TEST(FuzzTest, a_slot_table_is_refused_or_can_be_used) {
  run(slot_table(), 4000);
}
TEST(FuzzTest, a_segment_is_refused_or_can_be_used) {
  run(segment(), 800);
}
TEST(FuzzTest, a_safetensors_file_is_refused_or_names_bytes_of_its_own) {
  run(safetensors(), 20000);
}
TEST(FuzzTest, a_tokenizer_is_refused_or_can_be_used) {
  run(tokenizer(), 4000);
}
TEST(FuzzTest, a_chat_template_is_refused_or_renders_within_its_bounds) {
  run(chat_template(), 6000);
}

}  // namespace
}  // namespace kvtier::fuzz
