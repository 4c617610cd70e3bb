// The daemon's answers as JSON: snake_case, raw numbers. What `--json` prints and what the tables
// are made of; names are stable.
#pragma once

#include <nlohmann/json.hpp>

#include "client/wire/kvtier.capnp.h"

namespace kvtier::ctl {

using Json = nlohmann::ordered_json;

Json to_json(wire::Status::Reader status);
Json to_json(wire::ListReply::Reader reply);
Json to_json(wire::ScrubReport::Reader report);

}  // namespace kvtier::ctl
