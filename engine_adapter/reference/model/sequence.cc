#include "engine_adapter/reference/model/sequence.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/record/record.h"

namespace kvtier::engine {
namespace {

std::uint32_t blocks_for(std::uint32_t tokens, std::uint32_t block_tokens) noexcept {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace

Sequence::Sequence(PagePool& pool, const NamespaceId& ns, std::uint32_t tokens_max)
    : pool_(pool), layout_(pool.layout()), ns_(ns), tokens_max_(tokens_max) {
  const std::uint32_t blocks = blocks_for(tokens_max, layout_.block_tokens);
  tokens_.reserve(tokens_max);
  keys_.reserve(blocks);
  pages_.reserve(blocks);
  records_.reserve(blocks);
}

Sequence::~Sequence() {
  truncate(0);
  for (const ExactBlock block : exact_) {
    if (block.values != nullptr) pool_.release_exact(block);
  }
}

Result<void> Sequence::make_exact() {
  for (ExactBlock& block : exact_) {
    if (block.values != nullptr) continue;
    const auto made = pool_.acquire_exact();
    if (!made) return made.error();
    block = *made;
  }
  return {};
}

Result<void> Sequence::reserve(std::uint32_t tokens) {
  KVTIER_CHECK(tokens <= tokens_max_);
  if (auto made = make_exact(); !made) return made;
  const std::uint32_t blocks = blocks_for(tokens, layout_.block_tokens);
  while (pages_.size() < blocks) {
    const auto page = pool_.acquire();
    if (!page) return page.error();
    pages_.push_back(*page);
    records_.push_back(pool_.record(*page));
  }
  return {};
}

void Sequence::use_record(std::uint32_t block, std::byte* record) {
  KVTIER_CHECK(block < pages_.size() && pages_[block]);
  pool_.release(*pages_[block]);
  pages_[block].reset();
  records_[block] = record;
}

void Sequence::share(PageId page) {
  pool_.add_reference(page);
  pages_.push_back(page);
  records_.push_back(pool_.record(page));
}

Result<void> Sequence::make_own(std::uint32_t block) {
  KVTIER_CHECK(block >= blocks_complete() && block < pages_.size());
  if (pages_[block] && pool_.references(*pages_[block]) == 1) return {};
  const auto page = pool_.acquire();
  if (!page) return page.error();
  if (pages_[block]) pool_.release(*pages_[block]);
  pages_[block] = *page;
  records_[block] = pool_.record(*page);
  return {};
}

void Sequence::push_key(std::uint32_t block) {
  const auto tokens = std::span<const Token>(tokens_).subspan(
      std::size_t{block} * layout_.block_tokens, layout_.block_tokens);
  keys_.push_back(chain_key(ns_, block == 0 ? Key{} : keys_[block - 1], tokens));
}

void Sequence::adopt(std::span<const Token> tokens, const Key& key) {
  KVTIER_CHECK(length() % layout_.block_tokens == 0 && tokens.size() == layout_.block_tokens);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  KVTIER_CHECK(blocks_complete() <= pages_.size());
  keys_.push_back(key);
}

Result<void> Sequence::copy_from(const Sequence& other, StreamView stream) {
  KVTIER_CHECK(tokens_.empty() && pages_.empty() && tokens_max_ >= other.length());
  if (auto made = make_exact(); !made) return made;
  tokens_.assign(other.tokens_.begin(), other.tokens_.end());
  keys_ = other.keys_;
  forgotten_end_ = other.forgotten_end_;
  for (std::uint32_t block = 0; block < blocks_complete(); ++block) {
    if (other.pages_[block]) pool_.add_reference(*other.pages_[block]);
    pages_.push_back(other.pages_[block]);
    records_.push_back(other.records_[block]);
  }
  if (length() % layout_.block_tokens != 0) {
    pool_.copy_exact(open_block(), other.open_block(), stream);
  }
  return {};
}

Result<void> Sequence::restore_open(std::span<const Token> tokens,
                                    std::span<const std::byte> values, StreamView stream) {
  KVTIER_CHECK(length() % layout_.block_tokens == 0 && tokens.size() < layout_.block_tokens);
  if (auto made = make_exact(); !made) return made;
  pool_.restore_exact(open_block(), values, stream);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

void Sequence::truncate(std::uint32_t blocks) noexcept {
  KVTIER_CHECK(blocks <= blocks_complete() && (blocks == 0 || blocks >= forgotten_end_));
  if (blocks == 0) forgotten_end_ = 0;
  tokens_.resize(std::size_t{blocks} * layout_.block_tokens);
  keys_.resize(blocks);
  release_pages(blocks);
}

void Sequence::forget(BlockRange blocks) noexcept {
  KVTIER_CHECK(blocks.end <= blocks_complete());
  for (std::uint32_t block = std::max(blocks.first, forgotten_end_); block < blocks.end; ++block) {
    if (pages_[block]) pool_.release(*pages_[block]);
    pages_[block].reset();
    records_[block] = nullptr;
  }
  forgotten_end_ = std::max(forgotten_end_, blocks.end);
}

void Sequence::take_back(std::uint32_t tokens) noexcept {
  const std::uint32_t block_tokens = layout_.block_tokens;
  KVTIER_CHECK(tokens <= length() && length() - tokens < block_tokens);
  const bool reopens = tokens / block_tokens < blocks_complete() && tokens % block_tokens != 0;
  // The block behind it had the other exact page, if it was begun.
  if (reopens && length() % block_tokens != 0) open_ = 1 - open_;
  tokens_.resize(tokens);
  keys_.resize(blocks_complete());
  release_pages(blocks_for(tokens, block_tokens));
}

void Sequence::release_pages(std::uint32_t blocks) noexcept {
  while (pages_.size() > blocks) {
    if (pages_.back()) pool_.release(*pages_.back());
    pages_.pop_back();
    records_.pop_back();
  }
}

void Sequence::append(std::span<const Token> tokens) {
  KVTIER_CHECK(!tokens.empty() && tokens_.size() + tokens.size() <= tokens_max_);
  const std::uint32_t block_tokens = layout_.block_tokens;
  const std::uint32_t first = blocks_complete();
  const bool was_open = length() % block_tokens != 0;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (std::uint32_t block = first; block < blocks_complete(); ++block) push_key(block);
  const bool is_open = length() % block_tokens != 0;
  if (is_open && !(was_open && blocks_complete() == first)) open_ = 1 - open_;
}

void Sequence::write_header(std::uint32_t block, std::span<std::byte> to) const {
  KVTIER_CHECK(block < keys_.size());
  const BlockIdentity identity{ns_, keys_[block], block == 0 ? Key{} : keys_[block - 1], block};
  kvtier::write_header(to, layout_, identity,
                       std::span<const Token>(tokens_).subspan(
                           std::size_t{block} * layout_.block_tokens, layout_.block_tokens));
}

}  // namespace kvtier::engine
