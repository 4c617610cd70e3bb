#include "storage/remote/directory/directory_backend.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <system_error>
#include <thread>

#include "storage/remote/directory/directory_work.h"
#include "storage/remote/remote_bounds.h"

namespace kvtier::storage {
namespace {

// For the threads that hang in no call, when the store is closed.
constexpr std::chrono::milliseconds kEndOfThreads{500};

// A worker's own memory, used again.
std::span<std::byte> own_memory(std::uint64_t bytes) {
  thread_local std::vector<std::byte> memory;
  if (memory.size() < bytes) memory.resize(bytes);
  return std::span(memory).first(bytes);
}

void find_keys(DirectoryWork& work, DirectoryTask& task, const std::vector<Key>& keys) {
  std::size_t found = 0;
  for (; found < keys.size() && !task.answered; ++found) {
    const auto there = work.files().has(keys[found]);
    if (!there) {
      work.note_io_error();
      return work.answer(task, there.error());
    }
    if (!*there) break;
  }
  work.answer(task, found);
}

void read_value(DirectoryWork& work, DirectoryTask& task, const RemoteBackend::Read& read) {
  const auto value = own_memory(work.form().value_bytes(read.memory.size()));
  auto good = work.files().read(read.key, value);
  std::span<const std::byte> record;
  if (good) {
    const auto opened = work.form().open(value, read.ns, read.key);
    if (opened) {
      record = *opened;
    } else {
      good = opened.error();
    }
  }
  if (!good) {
    const Errc code = good.error().code;
    if (code == Errc::corrupt) {
      ++work.shared().counters.corrupt;
      static_cast<void>(work.files().erase(read.key));
    } else if (code != Errc::not_found) {
      work.note_io_error();
    }
    return work.answer(task, good.error());
  }
  if (!work.claim(task)) return;
  std::memcpy(read.memory.data(), record.data(), record.size());
  work.answer(task, record.size());
  work.release(task);
}

void write_value(DirectoryWork& work, DirectoryTask& task, const RemoteBackend::Write& write) {
  if (!work.claim(task)) return;
  const auto value = work.form().make(write.memory, write.identity);
  std::span<std::byte> rest;
  if (value) {
    rest = own_memory(value->rest.size());
    std::copy(value->rest.begin(), value->rest.end(), rest.begin());
  }
  work.release(task);
  if (!value) return work.answer(task, value.error());
  const auto written = work.files().write(write.identity.key, value->first, rest);
  if (written) return work.answer(task, write.memory.size());
  const Errc code = written.error().code;
  if (code == Errc::no_space || code == Errc::unavailable) {
    work.note_write_error(written.error(), value->first.size() + rest.size());
  } else {
    work.note_io_error();
  }
  work.answer(task, written.error());
}

class DirectoryBackend final : public RemoteBackend {
 public:
  explicit DirectoryBackend(std::shared_ptr<DirectoryWork> work) : work_(std::move(work)) {}
  ~DirectoryBackend() override { close(); }

  // Errors: io.
  Result<void> start(std::size_t workers) {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    Result<void> started;
    try {
      keeper_ = std::thread([work = work_] { work->run_keeper(); });
      std::thread([work = work_] { work->run_prober(); }).detach();
      for (std::size_t i = 0; i < workers; ++i)
        std::thread([work = work_, i] { work->run_worker(i); }).detach();
    } catch (const std::system_error& failed) {
      started =
          make_error(Errc::io, std::string("no thread for the remote store: ") + failed.what());
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void find(Find find) override {
    add(std::move(find.done), find.deadline, true,
        [work = work_.get(), keys = std::move(find.keys)](DirectoryTask& task) {
          find_keys(*work, task, keys);
        });
  }
  void read(Read read) override {
    auto done = without_size(std::move(read.done));
    const Deadline deadline = read.deadline;
    add(std::move(done), deadline, true,
        [work = work_.get(), read = std::move(read)](DirectoryTask& task) {
          read_value(*work, task, read);
        });
  }
  void write(Write write) override {
    auto done = without_size(std::move(write.done));
    add(std::move(done), Clock::now() + kRemoteWriteTime, false,
        [work = work_.get(), write = std::move(write)](DirectoryTask& task) {
          write_value(*work, task, write);
        });
  }
  void erase(Erase erase) override {
    auto keys = std::make_shared<const std::vector<Key>>(std::move(erase.keys));
    // What is late may go yet or not: it is asked for again.
    auto done = [keys, done = std::move(erase.done)](const Result<std::size_t>& erased) {
      done(erased ? std::vector<Key>{} : *keys);
    };
    add(std::move(done), Clock::now() + kRemoteOwnTime, false,
        [work = work_.get(), keys](DirectoryTask& task) {
          for (const Key& key : *keys) {
            if (const auto gone = work->files().erase(key); !gone) {
              work->note_write_error(gone.error(), 0);
              return work->answer(task, gone.error());
            }
          }
          work->answer(task, keys->size());
        });
  }

  void close() override {
    if (!keeper_.joinable()) return;
    work_->close();
    keeper_.join();
    work_->wait_for_threads(kEndOfThreads);
  }

 private:
  static RemoteStore::Done<std::size_t> without_size(RemoteStore::Done<void> done) {
    return [done = std::move(done)](const Result<std::size_t>& result) {
      done(result ? Result<void>() : result.error());
    };
  }
  void add(RemoteStore::Done<std::size_t> done, Deadline deadline, bool first,
           DirectoryTask::Work what) {
    auto task = std::make_shared<DirectoryTask>();
    task->work = std::move(what);
    task->answer = std::move(done);
    work_->add(std::move(task), deadline, first);
  }

  // The threads share it, and one that hangs in a call has it when this is gone.
  const std::shared_ptr<DirectoryWork> work_;
  std::thread keeper_;
};

}  // namespace

Result<std::unique_ptr<RemoteBackend>> open_directory_backend(
    const RemoteOptions& options, const RemoteUrl& url, const ValueForm& form,
    std::shared_ptr<RemoteShared> shared) {
  const bool of_redis = options.cluster || !options.password_file.empty() ||
                        !options.tls_ca_file.empty() || !options.tls_cert_file.empty();
  if (of_redis)
    return make_error(Errc::invalid, "the remote store " + options.url +
                                         " is a directory, which has no password, TLS or cluster");
  auto work = std::make_shared<DirectoryWork>(DirectoryFiles(url.directory, options.expiry), form,
                                              std::move(shared), options.connections);
  auto backend = std::make_unique<DirectoryBackend>(std::move(work));
  if (auto started = backend->start(options.connections); !started) return started.error();
  return backend;
}

}  // namespace kvtier::storage
