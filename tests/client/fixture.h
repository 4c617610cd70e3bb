// A client connected to a fake daemon, and prompts for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/record/record.h"
#include "tests/client/fake_daemon.h"

namespace kvtier::test {

using std::chrono::milliseconds;

// Longer than anything here takes, even under a sanitizer on a busy machine.
inline Deadline soon() {
  return Clock::now() + std::chrono::seconds(20);
}
inline Deadline in(milliseconds time) {
  return Clock::now() + time;
}

inline Namespace small_namespace(StorageFormat format = StorageFormat::f32) {
  Namespace ns;
  ns.model = "test@1";
  ns.layers = 3;
  ns.kv_heads = 2;
  ns.head_dim_k = 8;
  ns.head_dim_v = 16;
  ns.block_tokens = 16;
  ns.format = format;
  ns.positions = "rope";
  return ns;
}

// What proves the whole blocks of `tokens`.
inline Proofs proofs_of(const Namespace& ns, std::span<const Token> tokens) {
  Prefix prefix(ns);
  EXPECT_TRUE(prefix.append(tokens));
  return prefix.proofs();
}

inline std::vector<Token> prompt_of(std::size_t tokens, Token first = 100) {
  std::vector<Token> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

// Memory for records, as an engine would have it.
struct RecordPages {
  RecordPages(std::size_t blocks, std::size_t bytes)
      : memory(blocks, std::vector<std::byte>(bytes)) {
    for (auto& m : memory) pointers.push_back(m.data());
  }
  Pages pages() const {
    Pages p;
    p.records = pointers;
    return p;
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> pointers;
};

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() : ClientTest(small_namespace()) {}
  explicit ClientTest(Namespace n)
      : ns(std::move(n)), layout(RecordLayout::of(ns)), daemon(layout.record_bytes) {}

  void start(ClientOptions options = {}) {
    options.socket = daemon.socket();
    options.reconnect_delay_max = milliseconds(20);
    client = Client::start(std::move(options)).value();
    cache = client->open(ns).value();
  }
  void start_connected(ClientOptions options = {}) {
    start(std::move(options));
    ASSERT_TRUE(client->wait_connected(soon()));
    // Slots, where there are any, are at hand after it.
    ASSERT_TRUE(client->flush(soon()));
  }

  std::vector<Key> keys(std::span<const Token> tokens) const {
    return chain_keys(id_of(ns), ns.block_tokens, tokens);
  }
  // Makes the prompt's complete blocks leasable from slots first_slot, ... of `tier`; a block's
  // payload bytes all have the value block + 1.
  void cache_prompt(std::span<const Token> tokens, Tier tier = Tier::host,
                    std::uint32_t first_slot = 0) {
    const auto chain = keys(tokens);
    for (std::uint32_t i = 0; i < chain.size(); ++i) {
      const auto slot = daemon.slot_name(tier, first_slot + i);
      write_record(daemon.slot(slot), chain, i, tokens);
      daemon.publish(chain[i], TierSet{}.with(tier), slot);
    }
  }
  void write_record(std::span<std::byte> record, const std::vector<Key>& chain, std::uint32_t block,
                    std::span<const Token> tokens) const {
    write_header(record, layout,
                 {id_of(ns), chain[block], block == 0 ? Key{} : chain[block - 1], block},
                 tokens.subspan(std::size_t{block} * ns.block_tokens, ns.block_tokens));
    std::memset(record.data() + layout.header_bytes, static_cast<int>(block + 1),
                layout.payload_bytes);
  }
  std::span<const std::byte> payload(const std::vector<std::byte>& record) const {
    return std::span(record).subspan(layout.header_bytes, layout.payload_bytes);
  }
  bool payload_is(const std::vector<std::byte>& record, unsigned value) const {
    return std::ranges::all_of(payload(record), [&](std::byte b) { return b == std::byte(value); });
  }
  // Waits until the client has noticed that its connection ended.
  bool disconnects() const {
    const Deadline deadline = soon();
    while (client->connected() && Clock::now() < deadline) std::this_thread::yield();
    return !client->connected();
  }

  const Namespace ns;
  const RecordLayout layout;
  FakeDaemon daemon;
  std::shared_ptr<Client> client;
  std::shared_ptr<Cache> cache;
};

}  // namespace kvtier::test
