// Redis or Valkey, alone or as a cluster, as what is behind a remote store.
#pragma once

#include <memory>

#include "storage/remote/remote_backend.h"
#include "storage/remote/remote_url.h"
#include "storage/remote/remote_value.h"

namespace kvtier::storage {

// Starts its thread, which connects. Errors: invalid (files of TLS, the password's), io.
Result<std::unique_ptr<RemoteBackend>> open_redis_backend(const RemoteOptions& options,
                                                          const RemoteUrl& url,
                                                          const ValueForm& form,
                                                          std::shared_ptr<RemoteShared> shared);

}  // namespace kvtier::storage
