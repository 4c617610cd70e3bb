// What a file is that is not what it should be: for messages that name it, with the mend.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace kvtier::engine {

// "a Git LFS pointer and not the file itself: ...", by how `file` begins; none where nothing is
// recognised, as of a plain text.
std::optional<std::string> kind_of(std::span<const std::byte> file);
// The same of what should be weights, and is no text either.
std::optional<std::string> kind_of_weights(std::span<const std::byte> file);

}  // namespace kvtier::engine
