// What was erased, so that it stays erased where the index is lost and made anew from the segments.
// There a record may lie that was erased and not yet overwritten, or an older copy of it in a slot
// that was given up: each still proves itself, and says nothing of what became of it.
//
// A store has eras. Each record has the one it was written in; an erasure ends one, and covers the
// records up to it: all of a namespace, one of a key, or all there are. What is written later under
// the same name is of a later era. The log of erasures lies beside the index, and an erasure is in
// it, and durable, before anything is written in the era that it begins.
//
// The log is small: where it grows past its bound, erasures of keys become one of their namespace.
// That covers more than was erased, which costs hits if the index is lost, and nothing else. So it
// is with what cannot be read in it.
//
// Owned by who has the store's directory: the opener first, then the store's thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>

#include "core/base/fd.h"
#include "core/record/record.h"
#include "storage/index/store_options.h"

namespace kvtier::storage {

class Erasures {
 public:
  // The most entries of the log, and of those, how many keys of one namespace before all of it
  // goes.
  static constexpr std::size_t kEntriesMax = 1024;
  static constexpr std::size_t kKeysMax = 256;

  // An empty log in a directory that has none. Errors: io, no_space.
  static Result<void> make(const std::filesystem::path& file);
  // One that is missing or damaged covers every record there is, and is made anew. Errors: io,
  // no_space.
  static Result<Erasures> open(const std::filesystem::path& file);

  // Of records that are written now.
  std::uint64_t era() const noexcept { return era_; }
  bool covers(const RecordHeader& record) const;
  // Durable when this returns; records written from then on are not covered. Errors: io, no_space;
  // then perhaps it is, and it is to be added again.
  Result<void> add(std::span<const Erasure> erasures);

 private:
  struct OfNamespace {
    std::uint64_t all = 0;  // up to this era, of whatever key
    std::map<Key, std::uint64_t> keys;
  };

  explicit Erasures(std::filesystem::path file) : file_(std::move(file)) {}
  // False: there was something that could not be read.
  bool read(std::span<const std::byte> bytes);
  void note(const Erasure& erasure, std::uint64_t era);
  std::size_t entries() const noexcept;
  Result<void> append(std::span<const Erasure> erasures);
  // The log as short as it can be, in its place at once or not at all.
  Result<void> rewrite();

  std::filesystem::path file_;
  UniqueFd fd_;  // for appending
  std::uint64_t era_ = 1;
  std::uint64_t all_ = 0;
  std::map<NamespaceId, OfNamespace> namespaces_;
  std::size_t written_ = 0;  // entries in the file
};

}  // namespace kvtier::storage
