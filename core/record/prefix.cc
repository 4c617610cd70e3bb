#include "kvtier/prefix.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

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

// Room for so many more, at least twice as much as there was: what grows by one a call is copied as
// seldom as by push_back().
template <class T>
void make_room(std::vector<T>& in, std::size_t more) {
  if (in.size() + more > in.capacity()) in.reserve(std::max(in.size() + more, 2 * in.capacity()));
}

Error invalid(const std::string& what) {
  return make_error(Errc::invalid, "prefix: " + what);
}

}  // namespace

void Proofs::add(std::span<const std::byte> proof) {
  bytes_.insert(bytes_.end(), proof.begin(), proof.end());
  ends_.push_back(bytes_.size());
}

void Proofs::extend(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  ends_.back() = bytes_.size();
}

void Proofs::add_all(std::span<const std::byte> proofs, std::size_t each) {
  make_room(ends_, proofs.size() / each);
  make_room(bytes_, proofs.size());
  const std::size_t begin = bytes_.size();
  bytes_.insert(bytes_.end(), proofs.begin(), proofs.end());
  for (std::size_t end = begin + each; end <= bytes_.size(); end += each) ends_.push_back(end);
}

Proofs Proofs::take(std::size_t first, std::size_t end) && {
  if (first == 0 && end == size()) return std::move(*this);
  return slice(first, end);
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
  if (open_.empty() && covers_.empty()) {
    const auto whole = tokens.first(tokens.size() / block_tokens_ * block_tokens_);
    tokens = tokens.subspan(whole.size());
    append_whole(whole);
  }
  while (open_.size() + tokens.size() >= block_tokens_) {
    const auto rest = tokens.first(block_tokens_ - open_.size());
    proofs_.add(std::as_bytes(std::span<const Token>(open_)));
    proofs_.extend(std::as_bytes(rest));
    open_.clear();
    tokens = tokens.subspan(rest.size());
    complete(block_tokens_);
  }
  open_.insert(open_.end(), tokens.begin(), tokens.end());
  return {};
}

// Blocks that nothing but their tokens is in.
void Prefix::append_whole(std::span<const Token> tokens) {
  proofs_.add_all(std::as_bytes(tokens), block_tokens_ * sizeof(Token));
  make_room(keys_, tokens.size() / block_tokens_);
  Key parent = this->parent(blocks());
  for (; !tokens.empty(); tokens = tokens.subspan(block_tokens_)) {
    parent = chain_key(id_, parent, tokens.first(block_tokens_));
    keys_.push_back(parent);
  }
}

Result<void> Prefix::append_digest(std::span<const std::byte> digest) {
  if (digest_bytes_ == 0) return invalid("its namespace names blocks by tokens, not by digests");
  if (digest.size() != digest_bytes_) {
    return invalid("a digest has " + std::to_string(digest.size()) + " bytes, its namespace's " +
                   std::to_string(digest_bytes_));
  }
  digest_.resize(digest_bytes_);  // zeros before the first block
  proofs_.add(digest);
  proofs_.extend(digest_);
  digest_.assign(digest.begin(), digest.end());
  ++tokens_;
  complete(digest_bytes_);
  return {};
}

// Its proof is there but for what covers it.
void Prefix::complete(std::uint32_t count) {
  if (!covers_.empty()) {
    std::vector<std::byte> extra;
    append_extra(extra, keys_.size());
    proofs_.extend(extra);
  }
  keys_.push_back(chain_key(id_, parent(blocks()), count, proofs_[keys_.size()]));
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
