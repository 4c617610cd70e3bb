#include "storage/remote/remote_store.h"

#include "storage/remote/directory/directory_backend.h"
#include "storage/remote/redis/redis_backend.h"
#include "storage/remote/remote_front.h"
#include "storage/remote/remote_url.h"

namespace kvtier::storage {
namespace {

constexpr std::uint32_t kConnectionsMax = 64;
constexpr std::chrono::seconds kExpiryMax{10LL * 366 * 86400};

Result<void> check(const RemoteOptions& options) {
  if (options.connections < 1 || options.connections > kConnectionsMax) {
    return make_error(Errc::invalid, "connections = " + std::to_string(options.connections) +
                                         " of the remote store must be from 1 to " +
                                         std::to_string(kConnectionsMax));
  }
  if (options.expiry < std::chrono::seconds{0} || options.expiry > kExpiryMax)
    return make_error(Errc::invalid, "expiry of the remote store must be from 0 to ten years");
  if (options.tls_cert_file.empty() != options.tls_key_file.empty())
    return make_error(Errc::invalid,
                      "tls_cert_file and tls_key_file of the remote store go "
                      "together: give both or neither");
  return {};
}

}  // namespace

Result<std::unique_ptr<RemoteStore>> open_remote_store(const RemoteOptions& options,
                                                       RemoteStore::Post post) {
  if (auto good = check(options); !good) return good.error();
  const auto url = RemoteUrl::parse(options.url);
  if (!url) return url.error();
  std::shared_ptr<const ValueCipher> cipher;
  if (!options.key_file.empty()) {
    const auto key = ValueCipher::read_key(options.key_file);
    if (!key) return key.error();
    cipher = std::make_shared<const ValueCipher>(*key);
  }
  auto shared = std::make_shared<RemoteShared>();
  shared->post = std::move(post);
  const ValueForm form(std::move(cipher));
  auto backend = url->kind == RemoteUrl::Kind::redis
                     ? open_redis_backend(options, *url, form, shared)
                     : open_directory_backend(options, *url, form, shared);
  if (!backend) return backend.error();
  return make_remote_front(options, std::move(shared), std::move(*backend));
}

}  // namespace kvtier::storage
