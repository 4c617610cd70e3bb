// libkvtier's surface without a daemon: records kept in memory, with faults to order. The handles
// (Lease, Load, WriteBack) are implemented here too, so the tests link this in place of libkvtier.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "kvtier/client.h"

namespace kvtier::engine::test {

class FakeCache : public Cache {
 public:
  explicit FakeCache(const Namespace& ns)
      : ns_(ns), id_(id_of(ns)), layout_(RecordLayout::of(ns)) {}

  const Namespace& ns() const noexcept override { return ns_; }
  const NamespaceId& id() const noexcept override { return id_; }
  const RecordLayout& layout() const noexcept override { return layout_; }
  Match match(std::span<const Token> tokens) const noexcept override;
  using Cache::lease;
  Result<Lease> lease(std::span<const Token> tokens, BlockRange range, Deadline deadline) override;

  Result<void> state() const override { return {}; }
  Result<void> wait_open(Deadline) override { return {}; }
  // The engine asks by its prompts' tokens, and stores whole blocks of a prefix.
  Match match(const Prefix&) const noexcept override { return {}; }
  Result<Lease> lease(const Prefix&, BlockRange, Deadline) override { return by_tokens(); }
  Result<Lease> lease_async(const Prefix&, BlockRange, Deadline) override { return by_tokens(); }
  WriteBack write_back(std::span<const Token> tokens, std::uint32_t first_block, const Pages& pages,
                       StreamView stream, std::optional<Deadline> slots_by) noexcept override {
    Prefix of = prefix();
    (void)of.append(tokens);
    return write_back(of, first_block, pages, stream, slots_by);
  }
  WriteBack write_back(const Prefix& prefix, std::uint32_t first_block, const Pages& pages,
                       StreamView stream, std::optional<Deadline> slots_by) noexcept override;
  Result<LayerStore> begin_store(const Prefix&, std::uint32_t, const Pages&,
                                 std::optional<Deadline>) override {
    return by_tokens();
  }
  Result<void> hint(const Prefix& prefix, BlockRange range, const Hint& hint) noexcept override;

  std::map<Key, std::vector<std::byte>> records;
  std::map<Key, int> writes;           // how often each block was offered
  std::vector<std::uint32_t> answers;  // what each offer said of the answer
  std::vector<std::uint32_t> leases;   // blocks asked for
  std::vector<BlockRange> ranges;      // likewise
  std::vector<std::pair<BlockRange, Hint>> hints;
  std::map<Key, int> loads;  // how often each block was copied to a page
  std::map<Key, int> holds;  // leases on each block: drop() passes over them
  // Forgets the n-th block that nobody holds, if there is one.
  void drop(std::size_t nth);
  std::uint32_t write_backs_open = 0;  // not waited for
  Tier tier = Tier::host;

  // Faults.
  bool matches_too_much = false;  // match() says one block more than it may
  std::optional<Errc> lease_error;
  std::optional<Errc> load_error;
  std::uint32_t ready_max = ~0U;          // wait_ready() finds at most so many in memory
  std::uint32_t loaded_max = ~0U;         // load_into() finds at most so many sound
  std::optional<std::uint32_t> held;      // finish() says so; the blocks after it are garbage
  std::uint32_t checks_until_lost = ~0U;  // held() says so often less one that the lease is held
  std::vector<std::uint32_t> layers_waited;
  bool drops_writes = false;
  std::size_t records_max = ~std::size_t{0};  // more are dropped
  // Delays, each counted down by questions whether it has passed.
  std::uint32_t settle_delay = 0;  // of a lease's blocks
  std::uint32_t load_delay = 0;
  std::uint32_t write_delay = 0;

 private:
  std::uint32_t found(std::span<const Token> tokens) const;
  static Error by_tokens() { return make_error(Errc::invalid, "this cache knows tokens alone"); }

  Namespace ns_;
  NamespaceId id_;
  RecordLayout layout_;
};

}  // namespace kvtier::engine::test
