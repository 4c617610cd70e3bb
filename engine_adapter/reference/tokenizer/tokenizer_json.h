// The files that describe a tokenizer. Of the many kinds that a tokenizer.json can name the BPE
// ones are supported; every other is refused by name.
#pragma once

#include <string>

#include "engine_adapter/reference/tokenizer/tokenizer.h"

namespace kvtier::engine {

// Errors: malformed, invalid; the message names `where`, the field, and what is supported.
Result<TokenizerParts> parse_tokenizer(const Json& json, const std::string& where);

// tokenizer.model in `folder`, with the added tokens and add_bos_token of its
// tokenizer_config.json, where there is one. Errors: not_found, io, malformed, invalid.
Result<TokenizerParts> load_sentencepiece(const std::filesystem::path& folder);

}  // namespace kvtier::engine
