// Records and pages in a GPU's memory, whose bytes follow from their tokens, for tests of the
// client.
#pragma once

#include <cstring>
#include <numeric>
#include <vector>

#include "core/record/record.h"
#include "kernels/cuda/memory.h"
#include "kvtier/client.h"

namespace kvtier::gpu_test {

using kernels::cuda::DeviceArray;

inline Deadline soon() {
  return Clock::now() + std::chrono::seconds(20);
}

// 132 KiB a record in FP8.
inline Namespace test_namespace() {
  Namespace ns;
  ns.model = "gpu-test@1";
  ns.layers = 8;
  ns.kv_heads = 4;
  ns.head_dim_k = ns.head_dim_v = 128;
  ns.block_tokens = 16;
  ns.format = StorageFormat::fp8_e4m3;
  ns.positions = "rope";
  return ns;
}

// Prompt `number` of so many complete blocks, and one token more.
inline std::vector<Token> prompt_of(std::uint32_t number, std::size_t blocks) {
  std::vector<Token> tokens(blocks * 16 + 1);
  std::iota(tokens.begin(), tokens.end(), number * 100'000);
  return tokens;
}

inline std::uint64_t mixed(std::uint64_t n) {
  n = (n + 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
  return n ^ (n >> 29);
}

// Scales and payload that belong to the block of this key; the rest of the record is left alone.
inline void fill_stored(std::byte* record, const RecordLayout& layout, const Key& key) {
  for (std::size_t at = layout.scales_offset; at < layout.header_bytes; at += 4) {
    const auto word = static_cast<std::uint32_t>(mixed(key.head() + at));
    std::memcpy(record + at, &word, 4);
  }
  for (std::size_t at = 0; at < layout.payload_bytes; at += 8) {
    const std::uint64_t word = mixed(key.head() ^ (at * 31 + 7));
    std::memcpy(record + layout.header_bytes + at, &word, 8);
  }
}

// Whether the record is the whole block: its header, its proof, and what fill_stored() makes.
inline bool is_record(std::span<const std::byte> record, const RecordLayout& layout,
                      const BlockIdentity& identity, std::span<const Token> tokens) {
  if (!verify_header(record, layout, identity, tokens)) return false;
  std::vector<std::byte> expected(layout.record_bytes);
  fill_stored(expected.data(), layout, identity.key);
  const std::size_t scales_end = layout.scale_offset(layout.layers - 1, true, layout.kv_heads - 1) +
                                 sizeof(float) - layout.scales_offset;
  return std::memcmp(record.data() + layout.scales_offset, expected.data() + layout.scales_offset,
                     scales_end) == 0 &&
         std::memcmp(record.data() + layout.header_bytes, expected.data() + layout.header_bytes,
                     layout.payload_bytes) == 0;
}

// Pages of records, poisoned at first.
class RecordPages {
 public:
  RecordPages(const RecordLayout& layout, std::size_t blocks)
      : layout_(layout), memory_(blocks * layout.record_bytes) {
    memory_.fill_bytes(0xFF);
    for (std::size_t i = 0; i < blocks; ++i)
      pointers_.push_back(memory_.get() + i * layout.record_bytes);
  }
  Pages pages(bool in_place = false) const {
    Pages pages;
    pages.records = pointers_;
    pages.in_place = in_place;
    return pages;
  }
  // What an engine would have computed for the prompt's blocks.
  void compute(const Namespace& ns, std::span<const Token> prompt) {
    const auto keys = chain_keys(id_of(ns), ns.block_tokens, prompt);
    std::vector<std::byte> records(memory_.size(), std::byte{0xEE});
    for (std::size_t i = 0; i < pointers_.size(); ++i)
      fill_stored(records.data() + i * layout_.record_bytes, layout_, keys[i]);
    memory_.upload(records);
  }
  std::vector<std::byte> download() const { return memory_.download(); }
  std::byte* at(std::size_t block) const { return pointers_[block]; }
  std::size_t bytes() const { return memory_.bytes(); }
  std::byte* data() const { return memory_.get(); }

 private:
  const RecordLayout layout_;
  DeviceArray<std::byte> memory_;
  std::vector<std::byte*> pointers_;
};

// How many leading records of `bytes` are the prompt's blocks.
inline std::size_t right_records(std::span<const std::byte> bytes, const Namespace& ns,
                                 std::span<const Token> prompt, std::size_t blocks) {
  const RecordLayout layout = RecordLayout::of(ns);
  const auto keys = chain_keys(id_of(ns), ns.block_tokens, prompt);
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const BlockIdentity identity{id_of(ns), keys[i], i == 0 ? Key{} : keys[i - 1], i};
    if (!is_record(bytes.subspan(i * layout.record_bytes, layout.record_bytes), layout, identity,
                   prompt.subspan(i * ns.block_tokens, ns.block_tokens))) {
      return i;
    }
  }
  return blocks;
}

// Takes `wait`ing for slots at hand out of what a test sees: write-backs before it had any.
inline std::shared_ptr<Client> client_of(const std::string& socket,
                                         std::optional<std::uint32_t> cuda_device,
                                         std::uint32_t slots_ahead = 64) {
  ClientOptions options;
  options.cuda_device = cuda_device;
  options.socket = socket;
  options.slots_ahead = slots_ahead;
  options.reconnect_delay_max = std::chrono::milliseconds(20);
  return Client::start(std::move(options)).value();
}

}  // namespace kvtier::gpu_test
