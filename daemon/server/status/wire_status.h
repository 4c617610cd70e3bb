// The daemon's state as it is said on the wire: renderings of a Snapshot, which decide nothing.
#pragma once

#include <span>

#include "core/wire/frame.h"
#include "daemon/server/status/snapshot.h"

namespace kvtier::daemon {

void render(const Snapshot& snapshot, wire::Status::Builder out);
void render(const Snapshot::Scrub& scrub, wire::ScrubReport::Builder out);
void render(std::span<const Snapshot::SessionView> sessions, wire::Message::Builder out);

}  // namespace kvtier::daemon
