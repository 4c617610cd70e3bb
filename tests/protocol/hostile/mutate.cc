#include "tests/protocol/hostile/mutate.h"

#include <cstring>

#include "core/wire/frame.h"

namespace kvtier::protocol {
namespace {

using Word = std::uint64_t;

// Pointers, from the lowest bit: 2 of the kind (0 struct, 1 list, 2 far), 30 of the offset in
// words; of a list then 3 of the elements' size (0 none, 7 composite) and 29 of their number.
Word list_pointer(std::uint32_t offset, unsigned size, std::uint32_t count) {
  return 1 | Word{offset & 0x3FFFFFFFU} << 2 | Word{size} << 32 | Word{count & 0x1FFFFFFFU} << 35;
}

void mutate(std::span<Word> words, std::size_t at, Random& random) {
  Word& word = words[at];
  switch (random.below(11U)) {
    case 0:
      word ^= Word{1} << random.below(64U);
      break;
    case 1:
      word = random.next();
      break;
    case 2:
      word = 0;
      break;
    case 3:
      word = ~Word{0};
      break;
    case 4:
      word = words[random.below(words.size())];
      break;
    case 5:  // very many elements without a size, of a list or of structs
      word = list_pointer(0, 0, random.one_in(2) ? 0x1FFFFFFF : random.below(1U << 20));
      break;
    case 6:
      word = list_pointer(0, 7, 0);
      if (at + 1 < words.size()) words[at + 1] = Word{random.below(1U << 29)} << 2;
      break;
    case 7:  // elsewhere, perhaps over itself
      word = list_pointer(random.below(64U), random.below(8U), random.below(4096U));
      break;
    case 8:  // a struct at any place, itself included
      word = Word{random.below(1U << 30)} << 2 | Word{random.below(8U)} << 32 |
             Word{random.below(8U)} << 48;
      break;
    case 9:  // in another segment
      word = 2 | Word{random.below(4096U)} << 3 | Word{random.below(3U)} << 32;
      break;
    default:
      word = random.odd(word, 1);
  }
}

}  // namespace

void mutate_words(Bytes& frame, Random& random) {
  const std::size_t count = (frame.size() - sizeof(wire::FrameHeader)) / sizeof(Word);
  std::vector<Word> words(count);
  std::memcpy(words.data(), frame.data() + sizeof(wire::FrameHeader), count * sizeof(Word));
  for (std::uint32_t i = 1 + random.below(3U); i > 0 && count > 0; --i) {
    // Mostly where the pointers are.
    const std::size_t near = std::min<std::size_t>(count, 24);
    mutate(words, random.one_in(4) ? random.below(count) : random.below(near), random);
  }
  std::memcpy(frame.data() + sizeof(wire::FrameHeader), words.data(), count * sizeof(Word));
}

void break_header(Bytes& frame, Random& random) {
  wire::FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  constexpr std::uint32_t kLengths[]{0,          7,          wire::kFrameBytesMax + 8,
                                     0xFFFFFFFF, 0xFFFFFFF8, 0x80000000};
  switch (random.below(5U)) {
    case 0:
      header.magic = random.odd(header.magic, 1);
      break;
    case 1:
      header.length = random.pick(kLengths);
      break;
    case 2:
      header.length = random.odd(header.length, 1);
      break;
    case 3:
      header.descriptors = random.odd(1U, 2);
      break;
    default:
      header.zero = random.odd(0U, 1);
  }
  std::memcpy(frame.data(), &header, sizeof header);
}

}  // namespace kvtier::protocol
