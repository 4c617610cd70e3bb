// Records in memory that somebody writes to while they are looked at.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/record/private_head.h"

namespace kvtier {
namespace {

// A record between two pages that nobody may touch, so that a read outside of it is a crash. The
// other process's view of it is another mapping.
class SharedRecord {
 public:
  explicit SharedRecord(std::size_t bytes)
      : bytes_(bytes),
        memory_(*make_memfd("record", bytes)),
        theirs_(*Mapping::map(memory_.get(), bytes, Mapping::Access::read_write)) {
    void* const at =
        ::mmap(nullptr, bytes + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    guarded_ = static_cast<std::byte*>(at);
    EXPECT_EQ(::mmap(guarded_ + kGuard, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                     memory_.get(), 0),
              guarded_ + kGuard);
  }
  ~SharedRecord() { ::munmap(guarded_, bytes_ + 2 * kGuard); }
  SharedRecord(const SharedRecord&) = delete;

  std::span<std::byte> ours() const { return {guarded_ + kGuard, bytes_}; }
  std::byte* theirs() const { return theirs_.bytes().data(); }

 private:
  // As far as a size that was read twice could lead: 4 GiB of tokens are not to be had here, the
  // largest header is.
  static constexpr std::size_t kGuard = 16U << 20;
  const std::size_t bytes_;
  UniqueFd memory_;
  Mapping theirs_;
  std::byte* guarded_ = nullptr;
};

// Changes a field to and fro as fast as it can.
class Toggler {
 public:
  template <class Field>
  Toggler(std::byte* record, std::size_t offset, Field good, Field bad)
      : thread_([this, record, offset, good, bad] {
          volatile auto* const field = reinterpret_cast<volatile Field*>(record + offset);
          while (!stop_.load(std::memory_order_relaxed)) {
            *field = bad;
            ++turns_;
            *field = good;
          }
        }) {}
  ~Toggler() {
    stop_ = true;
    thread_.join();
  }
  // Until it has gone to and fro at least once more.
  void wait_for_turn() const {
    for (const auto before = turns_.load(); turns_.load() == before;) std::this_thread::yield();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> turns_ = 0;
  std::thread thread_;
};

class SharedRecordTest : public ::testing::Test {
 protected:
  SharedRecordTest() {
    ns_.model = "m";
    ns_.layers = 2;
    ns_.kv_heads = 2;
    ns_.head_dim_k = ns_.head_dim_v = 16;
    layout_ = RecordLayout::of(ns_);
    for (Token t = 0; t < ns_.block_tokens; ++t) tokens_.push_back(t + 1);
    identity_ = {id_of(ns_), chain_key(id_of(ns_), Key{}, tokens_), Key{}, 0};
    record_.emplace(layout_.record_bytes);
    std::memset(record_->ours().data(), 0x5A, layout_.record_bytes);
    write_header(record_->ours(), layout_, identity_, tokens_);
    EXPECT_TRUE(seal_checksums(record_->ours()));
    good_.assign(record_->ours().begin(), record_->ours().end());
  }

  // Everything that is asked of records in shared memory; each answer is that it does not hold, or
  // the right one.
  void look() {
    const std::span<const std::byte> record = record_->ours();
    (void)verify_header(record, layout_, identity_, tokens_);
    (void)verify_checksums(record, identity_.ns, identity_.key);
    if (const auto found = verify_found(record)) {
      EXPECT_EQ(found->key, identity_.key);
      EXPECT_EQ(found->token_count, ns_.block_tokens);
      EXPECT_EQ(found->record_bytes, layout_.record_bytes);
    }
    PrivateHead head;
    if (head.read(record)) {
      const RecordHeader& said = head.header();
      EXPECT_EQ(head.proof().size(),
                said.extra_bytes + (said.digest_bytes != 0 ? 2 * said.digest_bytes
                                                           : said.token_count * sizeof(Token)));
      EXPECT_LE(head.header().record_bytes, record.size());
      (void)head.holds(record);
    }
    if (head.read(record, layout_)) {
      EXPECT_EQ(head.proof().size(), layout_.block_tokens * sizeof(Token));
      (void)head.key_follows();
      (void)head.payload_holds(record, layout_);
      if (head.proves(layout_, identity_, std::as_bytes(std::span(tokens_)))) {
        EXPECT_EQ(head.header().token_count, ns_.block_tokens);
        EXPECT_EQ(std::memcmp(head.proof().data(), tokens_.data(), tokens_.size() * sizeof(Token)),
                  0);
      }
    }
    (void)seal_checksums(record_->ours());
  }
  template <class Field>
  void look_while_toggled(std::size_t offset, Field bad) {
    SCOPED_TRACE(offset);
    std::memcpy(record_->theirs(), good_.data(), good_.size());
    Field good;
    std::memcpy(&good, good_.data() + offset, sizeof good);
    constexpr int kLooks = 4000;
    const Toggler toggler(record_->theirs(), offset, good, bad);
    toggler.wait_for_turn();
    for (int i = 0; i < kLooks; ++i) look();
  }

  Namespace ns_;
  RecordLayout layout_;
  std::vector<Token> tokens_;
  BlockIdentity identity_;
  std::optional<SharedRecord> record_;
  std::vector<std::byte> good_;
};

// The daemon was ended by it: the number of tokens was checked in a copy and then read again.
TEST_F(SharedRecordTest, a_size_that_changes_under_its_reader_neither_ends_it_nor_leads_outside) {
  using H = RecordHeader;
  look_while_toggled<std::uint32_t>(offsetof(H, token_count), 0x7FFFFFFF);
  look_while_toggled<std::uint32_t>(offsetof(H, token_count), 2000);
  look_while_toggled<std::uint32_t>(offsetof(H, proof_offset), 0xFFFFF000);
  look_while_toggled<std::uint32_t>(offsetof(H, proof_offset), 1U << 20);
  look_while_toggled<std::uint32_t>(offsetof(H, scales_offset), 1U << 20);
  look_while_toggled<std::uint32_t>(offsetof(H, header_bytes), 1U << 22);
  look_while_toggled<std::uint64_t>(offsetof(H, payload_bytes), 1ULL << 40);
  look_while_toggled<std::uint64_t>(offsetof(H, record_bytes), 1ULL << 40);
}

TEST_F(SharedRecordTest, an_identity_that_changes_under_its_reader_is_right_or_does_not_hold) {
  using H = RecordHeader;
  look_while_toggled<std::uint64_t>(offsetof(H, key), 1);
  look_while_toggled<std::uint64_t>(offsetof(H, ns), 1);
  look_while_toggled<std::uint64_t>(offsetof(H, parent), 1);
  look_while_toggled<std::uint32_t>(offsetof(H, block_index), 1);
  look_while_toggled<std::uint64_t>(offsetof(H, payload_checksum), 1);
  look_while_toggled<std::uint64_t>(offsetof(H, header_checksum), 1);
  look_while_toggled<Token>(layout_.proof_offset, 1000);
  look_while_toggled<std::uint64_t>(layout_.header_bytes, 1);
}

TEST_F(SharedRecordTest, a_header_as_long_as_the_record_makes_nobody_take_that_much_memory) {
  RecordHeader header;
  std::memcpy(&header, good_.data(), sizeof header);
  const SharedRecord large(64U << 20);
  header.record_bytes = large.ours().size();
  header.header_bytes = static_cast<std::uint32_t>(large.ours().size() - kRecordAlignment);
  header.payload_bytes = kRecordAlignment;
  std::memcpy(large.ours().data(), &header, sizeof header);
  PrivateHead head;
  EXPECT_FALSE(head.read(large.ours()));
}

TEST_F(SharedRecordTest, a_record_that_does_not_hold_is_not_sealed_anew) {
  record_->theirs()[layout_.header_bytes] ^= std::byte{1};
  EXPECT_FALSE(seal_checksums(record_->ours()));
  EXPECT_FALSE(verify_found(record_->ours()));
  record_->theirs()[layout_.header_bytes] ^= std::byte{1};
  EXPECT_TRUE(seal_checksums(record_->ours()));
  EXPECT_TRUE(verify_found(record_->ours()));
}

}  // namespace
}  // namespace kvtier
