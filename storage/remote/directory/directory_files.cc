#include "storage/remote/directory/directory_files.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/base/points.h"
#include "storage/index/store_directory.h"
#include "storage/remote/remote_value.h"

namespace kvtier::storage {
namespace {

constexpr std::string_view kFormat = "kvtier remote store\nversion 1\n";
constexpr std::string_view kFormatBegins = "kvtier remote store\n";
constexpr const char* kNew = "new";
constexpr std::chrono::hours kLeftoverAge{1};
constexpr unsigned kFolders = 4096, kFoldersAtOnce = 8;
constexpr std::size_t kFolderDigits = 3;
constexpr ::mode_t kFolderMode = 0770, kFileMode = 0660;

Error at_fault(const std::filesystem::path& directory, Errc code, const std::string& what) {
  return make_error(code, directory.string() + " " + what);
}

std::string random_name() {
  std::array<std::byte, 16> bytes{};
  const ssize_t filled = ::getrandom(bytes.data(), bytes.size(), 0);
  static_cast<void>(filled);
  return to_hex(std::span<const std::byte, 16>(bytes));
}

UniqueFd open_file(const std::filesystem::path& path, int flags) {
  // Neither through a link nor, where somebody put a pipe, for ever.
  return UniqueFd(
      ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, kFileMode));
}

bool read_all(int fd, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t bytes = ::read(fd, into.data(), into.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(bytes));
  }
  return true;
}

bool write_all(int fd, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t bytes = ::write(fd, from.data(), from.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    from = from.subspan(static_cast<std::size_t>(bytes));
  }
  return true;
}

// Empty: it cannot be read, which errno has the reason of.
std::string read_format(const std::filesystem::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  if (!fd) return {};
  std::string text(256, '\0');
  errno = 0;
  const ssize_t bytes = ::read(fd.get(), text.data(), text.size());
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return text;
}

}  // namespace

DirectoryFiles::DirectoryFiles(std::filesystem::path directory, std::chrono::seconds expiry)
    : directory_(std::move(directory)), expiry_(expiry) {}

Error DirectoryFiles::failure(const std::string& what, int code) const {
  const std::string said = what + ": " + std::strerror(code);
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return at_fault(directory_, Errc::no_space, said + "; give it room, or an expiry");
    case EROFS:
    case EACCES:
    case EPERM:
      return at_fault(directory_, Errc::unavailable,
                      said + "; mount it for writing, and let this user write there");
    case ESTALE:
      return at_fault(directory_, Errc::io, said + "; mount it anew");
    default:
      return at_fault(directory_, Errc::io, said + "; look at its file server and dmesg");
  }
}

Result<void> DirectoryFiles::check(bool may_make) const {
  KVTIER_POINT("remote.directory.check");
  struct stat mark {};
  if (::stat((directory_ / kNotMountedMark).c_str(), &mark) == 0)
    return at_fault(directory_, Errc::io,
                    "is not mounted: it has the mark NOT-MOUNTED. It is waited for; mount it");
  const auto path = directory_ / "FORMAT";
  const std::string format = read_format(path);
  if (format == kFormat) return {};
  if (format.starts_with(kFormatBegins))
    return at_fault(
        directory_, Errc::version,
        "is a store of another version of kvtier; give this one a directory of its own");
  if (!format.empty())
    return at_fault(directory_, Errc::invalid,
                    "has a FORMAT file that is not kvtier's; name another directory");
  if (errno != ENOENT && errno != 0) return failure("cannot be looked at", errno);
  std::error_code failed;
  std::filesystem::directory_iterator file(directory_, failed);
  for (; !failed && file != std::filesystem::directory_iterator(); file.increment(failed)) {
    const std::string name = file->path().filename();
    if (name != kNew && name != "lost+found" && name != "FORMAT" && !name.starts_with(".nfs"))
      return at_fault(directory_, Errc::invalid,
                      "has no FORMAT file but is not empty (" + name +
                          "); name a directory that is only for this");
  }
  if (failed) return failure("cannot be looked at", failed.value());
  if (!may_make)
    return at_fault(directory_, Errc::io, "is empty, and was not before: mount what was there");
  const auto made = write_new(std::as_bytes(std::span(kFormat)), {});
  if (!made) return made.error();
  if (::rename(made->c_str(), path.c_str()) != 0) return failure("cannot be written to", errno);
  return {};
}

std::filesystem::path DirectoryFiles::path_of(const Key& key) const {
  const std::string name = to_hex(key);
  return directory_ / name.substr(name.size() - kFolderDigits) / name;
}

bool DirectoryFiles::expired(std::int64_t modified_s) const {
  return expiry_.count() > 0 && modified_s + expiry_.count() < ::time(nullptr);
}

Result<bool> DirectoryFiles::has(const Key& key) const {
  struct stat file {};
  if (::lstat(path_of(key).c_str(), &file) == 0)
    return S_ISREG(file.st_mode) && !expired(file.st_mtim.tv_sec);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return failure("cannot be looked at", errno);
}

Result<void> DirectoryFiles::read(const Key& key, std::span<std::byte> value) const {
  KVTIER_POINT("remote.directory.read");
  const UniqueFd fd = open_file(path_of(key), O_RDONLY);
  if (!fd && (errno == ENOENT || errno == ENOTDIR))
    return make_error(Errc::not_found, "the remote store has no such record");
  if (!fd && errno == ELOOP) return make_error(Errc::corrupt, "value: what lies there is a link");
  struct stat file {};
  if (!fd || ::fstat(fd.get(), &file) != 0) return failure("cannot be read", errno);
  if (!S_ISREG(file.st_mode) || static_cast<std::uint64_t>(file.st_size) != value.size())
    return make_error(Errc::corrupt, "value: it has not the record's length");
  if (expired(file.st_mtim.tv_sec))
    return make_error(Errc::not_found, "the record has expired in the remote store");
  errno = 0;
  if (read_all(fd.get(), value)) return {};
  if (errno == 0) return make_error(Errc::corrupt, "value: it was cut short");
  return failure("cannot be read", errno);
}

Result<std::filesystem::path> DirectoryFiles::write_new(std::span<const std::byte> first,
                                                        std::span<const std::byte> rest) const {
  const auto folder = directory_ / kNew;
  const auto path = folder / random_name();
  UniqueFd fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!fd && errno == ENOENT) {
    if (::mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST)
      return failure("cannot be written to", errno);
    fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  }
  if (!fd) return failure("cannot be written to", errno);
  bool whole = write_all(fd.get(), first) && write_all(fd.get(), rest);
  int code = errno;
  // A file server may say only now that it had no room.
  if (::close(fd.release()) != 0 && whole) {
    whole = false;
    code = errno;
  }
  if (whole) return path;
  ::unlink(path.c_str());
  return failure("cannot be written to", code);
}

Result<void> DirectoryFiles::write(const Key& key, std::span<const std::byte> first,
                                   std::span<const std::byte> rest) const {
  KVTIER_POINT("remote.directory.write");
  const auto made = write_new(first, rest);
  if (!made) return made.error();
  const auto path = path_of(key);
  int code = 0;
  if (::rename(made->c_str(), path.c_str()) != 0) {
    code = errno;
    const bool folder_made =
        code == ENOENT &&
        (::mkdir(path.parent_path().c_str(), kFolderMode) == 0 || errno == EEXIST);
    if (folder_made) code = ::rename(made->c_str(), path.c_str()) == 0 ? 0 : errno;
  }
  if (code == 0) return {};
  ::unlink(made->c_str());
  return failure("cannot be written to", code);
}

Result<void> DirectoryFiles::erase(const Key& key) const {
  if (::unlink(path_of(key).c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
  return failure("cannot be erased from", errno);
}

Result<void> DirectoryFiles::try_write(std::uint64_t bytes) const {
  const std::vector<std::byte> content(bytes);
  const auto made = write_new(content, {});
  if (!made) return made.error();
  if (::unlink(made->c_str()) != 0) return failure("cannot be erased from", errno);
  return {};
}

// By the file server's clock alone: what was written just now says what time it is there.
void DirectoryFiles::clean_up() {
  const auto now_file = write_new({}, {});
  struct stat now {};
  if (!now_file || ::stat(now_file->c_str(), &now) != 0) return;
  ::unlink(now_file->c_str());
  const auto remove_older = [&](const std::filesystem::path& folder, std::chrono::seconds age) {
    std::error_code ignored;
    std::filesystem::directory_iterator file(folder, ignored);
    for (; !ignored && file != std::filesystem::directory_iterator(); file.increment(ignored)) {
      struct stat found {};
      if (::lstat(file->path().c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
          found.st_mtim.tv_sec + age.count() < now.st_mtim.tv_sec) {
        ::unlink(file->path().c_str());
      }
    }
  };
  remove_older(directory_ / kNew, kLeftoverAge);
  if (expiry_.count() == 0) return;
  for (unsigned i = 0; i < kFoldersAtOnce; ++i) {
    std::array<char, kFolderDigits + 1> name{};
    std::snprintf(name.data(), name.size(), "%03x", next_folder_++ % kFolders);
    remove_older(directory_ / name.data(), expiry_);
  }
}

}  // namespace kvtier::storage
