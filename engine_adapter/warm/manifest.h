// The manifest: what to warm, as a TOML or a JSON file (docs/kvtier-warm.md).
#pragma once

#include <filesystem>
#include <vector>

#include "engine_adapter/warm/documents.h"

namespace kvtier::warm {

// Paths are of the manifest's directory. `defaults` are the prefix and the salt where the manifest
// has none. Errors: io, not_found, malformed, invalid, each naming the file and the field or line.
Result<std::vector<Source>> load_manifest(const std::filesystem::path& file,
                                          const Source& defaults);

}  // namespace kvtier::warm
