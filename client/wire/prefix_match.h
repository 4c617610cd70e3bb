// How many leading blocks of a prompt a directory has: the whole of a lookup.
#pragma once

#include <span>

#include "client/wire/directory.h"
#include "kvtier/client.h"

namespace kvtier {

// Never the block of the last token. No system call, no allocation; any thread.
Match match_prefix(const DirectoryView& directory, const NamespaceId& ns,
                   std::uint32_t block_tokens, std::span<const Token> tokens) noexcept;

}  // namespace kvtier
