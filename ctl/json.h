// The daemon's answers as JSON: snake_case, raw numbers. What `--json` prints and what the tables
// are made of; names are stable.
#pragma once

#include <nlohmann/json.hpp>

#include "core/wire/kvtier.capnp.h"

namespace kvtier::ctl {

using Json = nlohmann::ordered_json;

Json to_json(wire::Status::Reader status);
Json to_json(wire::ListReply::Namespace::Reader entry);
Json to_json(wire::ListReply::Block::Reader block);
// A further piece of a list: {"namespaces": [...], "blocks": [...]}.
void append(Json& list, wire::ListReply::Reader piece);
Json to_json(wire::Inspected::Reader inspected);
Json to_json(wire::Removed::Reader removed);
Json to_json(wire::Invalidated::Reader invalidated);
Json to_json(wire::SessionInfo::Reader session);
Json to_json(wire::Tenant::Reader tenant);
Json to_json(wire::ScrubReport::Reader report);

std::string hex(capnp::Data::Reader data);
// All of it, also behind a NUL.
inline std::string text_of(capnp::Text::Reader text) {
  return {text.begin(), text.size()};
}
std::string tier_name(std::uint8_t tier);
Json tiers_of(std::uint8_t bits);

}  // namespace kvtier::ctl
