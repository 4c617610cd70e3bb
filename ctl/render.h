// The tables that people read, from the JSON that programs read.
#pragma once

#include <string>

#include "ctl/json.h"

namespace kvtier::ctl {

std::string render_status(const Json& status);
std::string render_list(const Json& list);
std::string render_scrub(const Json& report);
// render_admin.cc
std::string render_inspect(const Json& block);
std::string render_sessions(const Json& sessions);
std::string render_drop(const Json& dropped);
std::string render_pin(const Json& pinned);
std::string render_unpin(const Json& unpinned);
std::string render_push(const Json& pushed);
std::string render_invalidate(const Json& invalidated);
std::string render_flush(const Json& flushed);
std::string render_quotas(const Json& quotas);
std::string render_checks(const Json& checks, bool colours);

}  // namespace kvtier::ctl
