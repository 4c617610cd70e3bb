// What is to be warmed: texts in files, each with what stands in front of it in a prompt and the
// tenant whose cache it is for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::warm {

// A file, a directory (every file below it, hidden ones and links to directories left out), or a
// pattern of glob(7), and what its documents have in common.
struct Source {
  std::string path;
  std::shared_ptr<const std::string> prefix;  // none: nothing stands in front
  std::string salt;                           // cache_salt; empty: none
};

struct Document {
  std::string path;
  std::shared_ptr<const std::string> prefix;
  std::string salt;
  std::uint64_t bytes = 0;  // of prefix and file, as it was found
  bool named = false;       // by itself, so that it is an error if it is no text
};

// All documents, each once, in the order of the sources and in one source by path.
// Errors: not_found, naming the source; io; no_space (more than kDocumentsMax).
Result<std::vector<Document>> find_documents(const std::vector<Source>& sources);

// The prompt: prefix and file, nothing between; a byte-order mark is left out. Errors: io,
// not_found, invalid (empty, too large, or not UTF-8, saying where).
Result<std::string> read_prompt(const Document& document);

// A prefix from a file. Errors: io, not_found, invalid.
Result<std::shared_ptr<const std::string>> read_prefix(const std::filesystem::path& file);

}  // namespace kvtier::warm
