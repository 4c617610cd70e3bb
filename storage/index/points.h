// The points of the disk tier, in the order in which a record's life passes them. A sweep walks
// this table; a name that is not in it does not compile.
#pragma once

#include <string_view>

#include "core/base/points.h"

namespace kvtier::storage {

inline constexpr const char* kPoints[] = {
    "storage.open.format_written",
    "storage.open.index_opened",
    "storage.open.pruned",
    "storage.erasures.added",
    "storage.rebuild.index_removed",
    "storage.rebuild.segment_scanned",
    "storage.rebuild.complete",
    "storage.write.taken",
    "storage.write.sealed",
    "storage.write.replaced_erased",
    "storage.segment.allocated",
    "storage.segment.before_header",
    "storage.segment.header_written",
    "storage.segment.made",
    "storage.segment.converted",
    "storage.write.before_submit",
    "storage.write.submitted",
    "storage.write.completed",
    "storage.write.before_index_commit",
    "storage.write.done",
    "storage.index.batch_built",
    "storage.index.batch_committed",
    "storage.erase.taken",
    "storage.erase.done",
    "storage.flush.started",
    "storage.flush.before_file_sync",
    "storage.flush.after_file_sync",
    "storage.flush.before_index_sync",
    "storage.flush.after_index_sync",
    "storage.health.offline",
    "storage.health.probe_written",
    "storage.health.index_revived",
    "storage.health.online",
    "storage.scrub.submitted",
};

consteval const char* listed(const char* name) {
  for (const char* known : kPoints) {
    if (std::string_view(known) == name) return known;
  }
  throw "a point that kPoints does not list";
}

}  // namespace kvtier::storage

#define KVTIER_STORAGE_POINT(name) KVTIER_POINT(::kvtier::storage::listed(name))
