// The tables that people read, from the JSON that programs read.
#pragma once

#include <string>

#include "client/ctl/json.h"

namespace kvtier::ctl {

std::string render_status(const Json& status);
std::string render_list(const Json& list);
std::string render_scrub(const Json& report);

}  // namespace kvtier::ctl
