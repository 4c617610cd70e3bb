// What the store's thread and its workers ask of one record's bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/units.h"
#include "core/record/private_head.h"
#include "core/record/record.h"
#include "storage/index/store_options.h"

namespace kvtier::storage {

inline constexpr std::uint64_t kSyncTag = 0;  // no transfer's; one sync is in flight at a time

// Checksums of records up to here cost less than handing them to a worker.
inline constexpr std::uint64_t kChecksumInlineBytesMax = 64_KiB;

std::string place(DiskLocation at);
Error does_not_fit(std::uint64_t record_bytes, DiskLocation at);
Error erased_meanwhile();

bool fits_slot(std::uint64_t record_bytes, DiskLocation at, std::uint64_t slot_bytes,
               std::uint64_t segment_bytes) noexcept;

// Sets the checksums and the era of a record that is about to be written, if it is the one its
// identity says. Errors: corrupt.
Result<void> seal_record(std::span<std::byte> record, const BlockIdentity& identity,
                         std::uint64_t era);

// The head of a record that is about to be written as it would be sealed, apart from the record,
// which is left as it is. Errors: corrupt.
Result<PrivateHead> sealed_head(std::span<const std::byte> record, const BlockIdentity& identity,
                                std::uint64_t era);

// Whether these bytes are the whole record looked for. Errors: corrupt.
Result<void> verify_record(std::span<const std::byte> record, const NamespaceId& ns,
                           const Key& key);
// Whether what was read from `at` is the whole record looked for. Errors: corrupt.
Result<void> verify_record(std::span<const std::byte> record, const NamespaceId& ns, const Key& key,
                           DiskLocation at);

}  // namespace kvtier::storage
