#include "storage/remote/redis/redis_backend.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <system_error>
#include <thread>

#include "storage/remote/redis/redis_loop.h"

namespace kvtier::storage {
namespace {

class RedisBackend final : public RemoteBackend {
 public:
  RedisBackend(std::shared_ptr<LoopInbox> inbox, RedisContext context)
      : inbox_(std::move(inbox)), loop_(std::move(context)) {
    // Signals are for the program's own threads; TLS, which writes by itself, would raise SIGPIPE.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { loop_.run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~RedisBackend() override { close(); }

  void find(Find find) override {
    inbox_->send([this, find = std::move(find)]() mutable { loop_.find(std::move(find)); });
  }
  void read(Read read) override {
    inbox_->send([this, read = std::move(read)]() mutable { loop_.read(std::move(read)); });
  }
  void write(Write write) override {
    inbox_->send([this, write = std::move(write)]() mutable { loop_.write(std::move(write)); });
  }
  void erase(Erase erase) override {
    inbox_->send([this, erase = std::move(erase)]() mutable { loop_.erase(std::move(erase)); });
  }
  void close() override {
    if (!thread_.joinable()) return;
    inbox_->send([this] { loop_.close(); });
    thread_.join();
  }

 private:
  const std::shared_ptr<LoopInbox> inbox_;
  RedisLoop loop_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<RemoteBackend>> open_redis_backend(const RemoteOptions& options,
                                                          const RemoteUrl& url,
                                                          const ValueForm& form,
                                                          std::shared_ptr<RemoteShared> shared) {
  TlsContext tls;
  if (url.tls) {
    auto made = make_tls_context(options);
    if (!made) return made.error();
    tls = std::move(*made);
  } else if (!options.tls_ca_file.empty() || !options.tls_cert_file.empty()) {
    return make_error(Errc::invalid, "the remote store has files for TLS, but its URL is " +
                                         options.url + ": TLS is rediss://");
  }
  if (!options.password_file.empty() && ::access(options.password_file.c_str(), R_OK) != 0)
    return errno_error(Errc::invalid, "password_file " + options.password_file +
                                          " of the remote store cannot be read");
  if (options.password_file.empty() && !url.user.empty())
    return make_error(Errc::invalid, "the remote store's URL names user " + url.user +
                                         ", and there is no password_file");
  auto inbox = LoopInbox::make();
  if (!inbox) return inbox.error();
  RedisContext context{options, url,          form, std::move(tls), std::move(shared), *inbox,
                       {},      Clock::now(), {}};
  return std::make_unique<RedisBackend>(*inbox, std::move(context));
}

}  // namespace kvtier::storage
