#include "kvtier/prefix.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace kvtier {
namespace {

// Before the bytes of what covers a block: their number, and where in the block it begins.
struct ExtraHead {
  std::uint32_t bytes;
  std::int32_t begin;
};
static_assert(sizeof(ExtraHead) == 8);

template <class T>
void append_bytes(std::vector<std::byte>& to, std::span<const T> from) {
  const auto bytes = std::as_bytes(from);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

Error invalid(const std::string& what) {
  return make_error(Errc::invalid, "prefix: " + what);
}

}  // namespace

void Proofs::add(std::span<const std::byte> proof) {
  bytes_.insert(bytes_.end(), proof.begin(), proof.end());
  ends_.push_back(bytes_.size());
}

Proofs Proofs::slice(std::size_t first, std::size_t end) const {
  Proofs part;
  if (first >= end) return part;
  const std::size_t begin = first == 0 ? 0 : ends_[first - 1];
  part.bytes_.assign(bytes_.begin() + static_cast<std::ptrdiff_t>(begin),
                     bytes_.begin() + static_cast<std::ptrdiff_t>(ends_[end - 1]));
  part.ends_.reserve(end - first);
  for (std::size_t block = first; block < end; ++block) part.ends_.push_back(ends_[block] - begin);
  return part;
}

void Proofs::truncate(std::size_t blocks) noexcept {
  if (blocks >= ends_.size()) return;
  ends_.resize(blocks);
  bytes_.resize(blocks == 0 ? 0 : ends_.back());
}

Prefix::Prefix(const Namespace& ns) : Prefix(id_of(ns), ns) {}

Prefix::Prefix(const NamespaceId& id, const Namespace& ns)
    : id_(id),
      block_tokens_(ns.block_tokens),
      extra_bytes_max_(ns.extra_bytes_max),
      digest_bytes_(ns.digest_bytes) {}

Result<void> Prefix::append(std::span<const Token> tokens) {
  if (digest_bytes_ != 0) return invalid("its namespace names blocks by digests, not by tokens");
  tokens_ += tokens.size();
  while (open_.size() + tokens.size() >= block_tokens_) {
    const auto rest = tokens.first(block_tokens_ - open_.size());
    std::vector<std::byte> proof;
    append_bytes(proof, std::span<const Token>(open_));
    append_bytes(proof, rest);
    open_.clear();
    tokens = tokens.subspan(rest.size());
    complete(block_tokens_, std::move(proof));
  }
  open_.insert(open_.end(), tokens.begin(), tokens.end());
  return {};
}

Result<void> Prefix::append_digest(std::span<const std::byte> digest) {
  if (digest_bytes_ == 0) return invalid("its namespace names blocks by tokens, not by digests");
  if (digest.size() != digest_bytes_) {
    return invalid("a digest has " + std::to_string(digest.size()) + " bytes, its namespace's " +
                   std::to_string(digest_bytes_));
  }
  std::vector<std::byte> proof(digest.begin(), digest.end());
  digest_.resize(digest_bytes_);  // zeros before the first block
  append_bytes(proof, std::span<const std::byte>(digest_));
  digest_.assign(digest.begin(), digest.end());
  ++tokens_;
  complete(digest_bytes_, std::move(proof));
  return {};
}

void Prefix::complete(std::uint32_t count, std::vector<std::byte> proof) {
  append_extra(proof, keys_.size());
  keys_.push_back(chain_key(id_, parent(blocks()), count, proof));
  proofs_.add(proof);
}

std::size_t Prefix::extra_of(std::size_t block) const noexcept {
  const std::size_t begin = block * tokens_of_block();
  std::size_t bytes = 0;
  for (const Cover& cover : covers_) {
    if (cover.first < begin + tokens_of_block() && cover.end > begin)
      bytes += sizeof(ExtraHead) + cover.bytes.size();
  }
  return bytes;
}

void Prefix::append_extra(std::vector<std::byte>& proof, std::size_t block) const {
  const std::size_t begin = block * tokens_of_block();
  for (const Cover& cover : covers_) {
    if (cover.first >= begin + tokens_of_block() || cover.end <= begin) continue;
    const ExtraHead head{static_cast<std::uint32_t>(cover.bytes.size()),
                         static_cast<std::int32_t>(static_cast<std::ptrdiff_t>(cover.first) -
                                                   static_cast<std::ptrdiff_t>(begin))};
    append_bytes(proof, std::span(&head, 1));
    append_bytes(proof, std::span<const std::byte>(cover.bytes));
  }
}

Result<void> Prefix::cover(std::size_t first, std::size_t end, std::span<const std::byte> bytes) {
  if (first >= end || bytes.empty()) return invalid("covers no token, or with no bytes");
  if (end > (std::size_t{1} << 31)) return invalid("covers tokens beyond 2^31");
  const std::size_t each = tokens_of_block();
  if (first < keys_.size() * each) {
    return invalid("token " + std::to_string(first) + " is in a block that is complete already");
  }
  covers_.push_back({first, end, {bytes.begin(), bytes.end()}});
  // The fullest of the blocks is one in which another range begins or this one does.
  for (const Cover& other : covers_) {
    const std::size_t block = std::max(other.first, first) / each;
    if (block * each >= end || extra_of(block) <= extra_bytes_max_) continue;
    const std::size_t taken = extra_of(block);
    covers_.pop_back();
    return invalid("block " + std::to_string(block) + " would be covered by " +
                   std::to_string(taken) + " bytes; extra_bytes_max is " +
                   std::to_string(extra_bytes_max_));
  }
  return {};
}

void Prefix::truncate(std::size_t tokens) {
  if (tokens >= tokens_) return;
  const std::size_t each = tokens_of_block();
  const std::size_t whole = tokens / each;
  if (whole < keys_.size()) {
    // What is left of the block that was complete is open again.
    const auto proof = proofs_[whole];
    open_.resize(digest_bytes_ != 0 ? 0 : tokens % each);
    if (!open_.empty()) std::memcpy(open_.data(), proof.data(), open_.size() * sizeof(Token));
    if (digest_bytes_ != 0) {
      const auto digest = proof.subspan(digest_bytes_, digest_bytes_);
      digest_.assign(digest.begin(), digest.end());
    }
    keys_.resize(whole);
    proofs_.truncate(whole);
  } else {
    open_.resize(tokens % each);
  }
  tokens_ = tokens;
  std::erase_if(covers_, [&](const Cover& cover) { return cover.first >= tokens; });
}

std::uint32_t Prefix::blocks_matchable() const noexcept {
  if (digest_bytes_ != 0) return blocks();
  return static_cast<std::uint32_t>(kvtier::blocks_matchable(tokens_, block_tokens_));
}

}  // namespace kvtier
