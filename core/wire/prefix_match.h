// How many leading blocks of a prompt a directory has: the whole of a lookup.
#pragma once

#include <span>

#include "core/wire/directory.h"
#include "kvtier/key.h"
#include "kvtier/match.h"
#include "kvtier/namespace.h"

namespace kvtier {

// Never the block of the last token. No system call, no allocation; any thread.
Match match_prefix(const DirectoryView& directory, const NamespaceId& ns,
                   std::uint32_t block_tokens, std::span<const Token> tokens) noexcept;

// The same for keys that are known already: all of them may come from a cache.
Match match_keys(const DirectoryView& directory, std::span<const Key> keys) noexcept;

}  // namespace kvtier
