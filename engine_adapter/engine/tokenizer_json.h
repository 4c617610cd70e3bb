// tokenizer.json of the tokenizers library. Of its many kinds the byte-level BPE ones are
// supported; every other is refused by name.
#pragma once

#include <string>

#include "engine_adapter/engine/tokenizer.h"

namespace kvtier::engine {

// Errors: malformed, invalid; the message names `where`, the field, and what is supported.
Result<TokenizerParts> parse_tokenizer(const Json& json, const std::string& where);

}  // namespace kvtier::engine
