// Text from outside (names, salts, paths, messages of peers) as a person may see it: on a terminal,
// in a log, on a page.
#pragma once

#include <string>
#include <string_view>

namespace kvtier {

// `text` with everything that is not a visible character written as \xNN, byte by byte: control
// characters (line ends too, so that one value stays one line), what is not UTF-8, and what turns
// the writing direction or hides. Cut, with "..." behind it, before it would be longer than
// `bytes_max`.
std::string shown(std::string_view text, std::size_t bytes_max = std::string::npos);

}  // namespace kvtier
