#include "kvtier/result.h"

namespace kvtier {

const char* name(Errc code) noexcept {
  switch (code) {
    case Errc::unavailable:
      return "unavailable";
    case Errc::deadline:
      return "deadline";
    case Errc::refused:
      return "refused";
    case Errc::malformed:
      return "malformed";
    case Errc::version:
      return "version";
    case Errc::invalid:
      return "invalid";
    case Errc::not_found:
      return "not_found";
    case Errc::no_space:
      return "no_space";
    case Errc::io:
      return "io";
    case Errc::corrupt:
      return "corrupt";
    case Errc::stale:
      return "stale";
  }
  return "unknown";
}

}  // namespace kvtier
