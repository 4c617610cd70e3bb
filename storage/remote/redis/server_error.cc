#include "storage/remote/redis/server_error.h"

#include <charconv>

#include "core/base/shown.h"
#include "storage/remote/redis/key_slot.h"

namespace kvtier::storage {
namespace {

using Kind = ServerError::Kind;

struct Known {
  std::string_view begins;
  Kind kind;
  const char* why;  // null: what the server says
  bool full = false, map_stale = false;
};

constexpr Known kKnown[] = {
    {"TRYAGAIN", Kind::try_again, nullptr, false, false},
    {"READONLY", Kind::not_master, "is a replica, which takes no writes; name its master in `url`",
     false, true},
    {"WRONGTYPE", Kind::not_a_value, nullptr, false, false},
    {"CLUSTERDOWN", Kind::unusable,
     "says that its cluster is down; redis-cli cluster info says which slots nobody serves", false,
     true},
    {"LOADING", Kind::unusable, "is loading what it holds; that ends by itself", false, false},
    {"MASTERDOWN", Kind::unusable,
     "is a replica that has lost its master; bring that back, or let the replica serve stale data",
     false, true},
    {"BUSY", Kind::unusable, "runs a script that does not end; redis-cli script kill ends it",
     false, false},
    {"NOAUTH", Kind::unusable,
     "asks for a password; put it into a file and name that as "
     "password_file",
     false, false},
    {"WRONGPASS", Kind::unusable,
     "refuses the user or the password; look at the user in `url` and at password_file", false,
     false},
    {"ERR invalid password", Kind::unusable, "refuses the password; look at password_file", false,
     false},
    {"ERR AUTH <password> called without", Kind::unusable,
     "has no password for its default user; take password_file away, or name a user in `url`",
     false, false},
    {"NOPERM", Kind::denied,
     "does not let this user do all that it must; give it: ~kvtier:* +get +set +strlen +del +ping "
     "+asking +cluster|slots",
     false, false},
    {"DENIED", Kind::unusable,
     "is in protected mode, which refuses other hosts; give it a password, or an address to bind "
     "to",
     false, false},
    {"ERR max number of clients", Kind::unusable,
     "has as many clients as it takes; raise its maxclients", false, false},
    {"OOM", Kind::no_writes,
     "has used its maxmemory; raise it, or have it evict: maxmemory-policy allkeys-lru", true,
     false},
    {"MISCONF", Kind::no_writes,
     "cannot save to its disk and takes no writes; look at its log, or turn off "
     "stop-writes-on-bgsave-error",
     false, false},
    {"NOREPLICAS", Kind::no_writes,
     "has fewer replicas than min-replicas-to-write, and takes no writes; bring them back", false,
     false},
    {"ERR This instance has cluster support disabled", Kind::no_cluster, nullptr, false, false},
};

// "MOVED 3999 127.0.0.1:6381".
bool parse_redirect(std::string_view text, ServerError& into) {
  text.remove_prefix(std::min(text.size(), text.find(' ') + 1));
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), into.slot);
  if (failed != std::errc{} || into.slot >= kClusterSlots) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(' ')) return false;
  text.remove_prefix(1);
  // IPv6 addresses come without brackets.
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  into.to.host = text.substr(0, colon);
  if (into.to.host == "?") into.to.host.clear();
  const std::string_view port = text.substr(colon + 1);
  const auto [port_end, bad] =
      std::from_chars(port.data(), port.data() + port.size(), into.to.port);
  return bad == std::errc{} && port_end == port.data() + port.size() && into.to.port != 0;
}

}  // namespace

ServerError classify_error(std::string_view text) {
  ServerError error;
  error.why = "answers \"" + shown(text.substr(0, 200)) + "\"";
  const bool moved = text.starts_with("MOVED ");
  if (moved || text.starts_with("ASK ")) {
    if (parse_redirect(text, error)) error.kind = moved ? Kind::moved : Kind::ask;
    return error;
  }
  for (const Known& known : kKnown) {
    if (!text.starts_with(known.begins)) continue;
    error.kind = known.kind;
    error.full = known.full;
    error.map_stale = known.map_stale;
    if (known.why != nullptr) error.why = known.why;
    return error;
  }
  return error;
}

}  // namespace kvtier::storage
