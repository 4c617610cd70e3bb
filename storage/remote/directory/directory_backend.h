// A directory that hosts share, as what is behind a remote store.
//
// Workers, as many as `connections`, read and write files; one more thread looks whether the
// directory is well. A call into the file system may never return, so none of these is waited for,
// and what they work on is their own memory: a slot is touched only under a claim, while its
// operation cannot be answered. The keeper, which makes no such call, answers what is late.
#pragma once

#include <memory>

#include "storage/remote/remote_backend.h"
#include "storage/remote/remote_url.h"
#include "storage/remote/remote_value.h"

namespace kvtier::storage {

// Starts the threads. Errors: invalid (options that only a Redis has), io (no threads).
Result<std::unique_ptr<RemoteBackend>> open_directory_backend(const RemoteOptions& options,
                                                              const RemoteUrl& url,
                                                              const ValueForm& form,
                                                              std::shared_ptr<RemoteShared> shared);

}  // namespace kvtier::storage
