#include "tests/storage/faults/index_files.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace kvtier::storage {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// As RocksDB's own file system maps them.
IOStatus failure(int error) {
  if (error == ENOSPC) return IOStatus::NoSpace("injected fault", std::strerror(error));
  return IOStatus::IOError("injected fault", std::strerror(error));
}

}  // namespace

// Its wrapped file is never written past a failure, so that a torn end is the cut's doing alone.
class BreakableFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  BreakableFile(std::unique_ptr<rocksdb::FSWritableFile> file, IndexFiles& files, std::string path)
      : FSWritableFileOwnerWrapper(std::move(file)), files_(files), path_(std::move(path)) {}

  using FSWritableFileOwnerWrapper::Append;
  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    if (const int error = files_.broken()) return failure(error);
    const IOStatus written = target()->Append(data, options, debug);
    const std::lock_guard lock(files_.mutex_);
    if (written.ok()) files_.files_[path_].bytes += data.size();
    return written;
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return synced([&] { return target()->Sync(options, debug); });
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return synced([&] { return target()->Fsync(options, debug); });
  }

 private:
  template <class Sync>
  IOStatus synced(Sync&& sync) {
    if (const int error = files_.broken()) return failure(error);
    std::uint64_t bytes = 0;
    {
      const std::lock_guard lock(files_.mutex_);
      auto& file = files_.files_[path_];
      bytes = file.bytes;
      if (const int error = files_.sync_error_) {
        ++files_.failures_;
        file.doubtful = true;
        return failure(error);
      }
      if (file.doubtful) return IOStatus::OK();
    }
    const IOStatus done = sync();
    const std::lock_guard lock(files_.mutex_);
    if (done.ok()) files_.files_[path_].synced_bytes = bytes;
    return done;
  }

  IndexFiles& files_;
  const std::string path_;
};

class BreakableFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit BreakableFiles(IndexFiles& files)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), files_(files) {}

  const char* Name() const override { return "breakable"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    if (const int error = files_.broken()) return failure(error);
    const IOStatus made = target()->NewWritableFile(path, options, file, debug);
    if (!made.ok()) return made;
    const std::lock_guard lock(files_.mutex_);
    files_.files_[path] = {};
    *file = std::make_unique<BreakableFile>(std::move(*file), files_, path);
    return made;
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options,
                      IODebugContext* debug) override {
    if (const int error = files_.broken()) return failure(error);
    const std::lock_guard lock(files_.mutex_);
    files_.files_.erase(path);
    return target()->DeleteFile(path, options, debug);
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* debug) override {
    if (const int error = files_.broken()) return failure(error);
    const std::lock_guard lock(files_.mutex_);
    if (auto moved = files_.files_.extract(from)) files_.files_[to] = moved.mapped();
    return target()->RenameFile(from, to, options, debug);
  }

 private:
  IndexFiles& files_;
};

IndexFiles::IndexFiles()
    : env_(rocksdb::NewCompositeEnv(std::make_shared<BreakableFiles>(*this))) {}
IndexFiles::~IndexFiles() = default;

int IndexFiles::broken() noexcept {
  const int error = error_;
  if (error != 0) ++failures_;
  return error;
}

void IndexFiles::cut(std::mt19937& random) {
  const std::lock_guard lock(mutex_);
  for (const auto& [path, file] : files_) {
    if (!std::filesystem::exists(path) || file.bytes == file.synced_bytes) continue;
    const auto fate = random() % 4;
    const std::uint64_t lost = fate < 2    ? file.bytes - file.synced_bytes
                               : fate == 2 ? 0
                                           : random() % (file.bytes - file.synced_bytes);
    std::filesystem::resize_file(path, file.bytes - lost);
  }
}

}  // namespace kvtier::storage
