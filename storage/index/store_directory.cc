#include "storage/index/store_directory.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "core/base/units.h"
#include "core/record/record.h"
#include "storage/index/allocated_bytes.h"
#include "storage/index/erasures.h"
#include "storage/index/points.h"
#include "storage/index/regular_file.h"
#include "storage/index/replace_file.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kIndexReserveBytes =
    32_MiB;  // write-ahead log, write buffers being flushed
constexpr std::uint64_t kIndexShare = 64;

struct Format {
  std::uint32_t version = kStoreVersion;
  StoreId id{};
  std::uint64_t segment_bytes = 0;
};

Error error_at(Errc code, const std::filesystem::path& path, const std::string& what) {
  return make_error(code, "disk tier " + path.string() + ": " + what);
}

std::string mebibytes(std::uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

Result<void> validate(const RecordStoreOptions& options) {
  const auto invalid = [&](const std::string& what) {
    return error_at(Errc::invalid, options.directory, what);
  };
  if (options.directory.empty()) return invalid("no directory given");
  if (options.segment_bytes % kRecordAlignment != 0 ||
      options.segment_bytes < 2 * kRecordAlignment || options.segment_bytes > 64_GiB) {
    return invalid("segment_bytes = " + std::to_string(options.segment_bytes) +
                   ", must be a multiple of 4 KiB from 8 KiB to 64 GiB");
  }
  if (options.checksum_threads == 0 || options.checksum_threads > 64) {
    return invalid("checksum_threads must be from 1 to 64");
  }
  if (options.probe_first.count() <= 0 || options.probe_max < options.probe_first ||
      options.check_interval.count() <= 0) {
    return invalid("probe_first and check_interval must be positive, probe_max no less");
  }
  if (options.reads_in_flight_max == 0 || options.writes_in_flight_max == 0 ||
      options.reads_queued_max == 0 || options.writes_queued_max == 0 ||
      options.reads_in_flight_max > 4096 || options.writes_in_flight_max > 4096) {
    return invalid("a queue bound is out of its range (in flight: 1 to 4096; queued: 1 or more)");
  }
  if (segment_capacity_bytes(options) < options.segment_bytes) {
    return invalid("a capacity of " + mebibytes(options.capacity_bytes) +
                   " is too small: one segment takes " + mebibytes(options.segment_bytes) +
                   " and the index's share is " +
                   mebibytes(options.capacity_bytes / kIndexShare + kIndexReserveBytes));
  }
  return {};
}

// None if the store was never made. Errors: version, io.
Result<std::optional<Format>> read_format(const std::filesystem::path& directory) {
  const auto text = read_small_file(directory / "FORMAT");
  if (!text && text.error().code == Errc::not_found) return std::optional<Format>{};
  if (!text) return text.error();
  std::istringstream file(*text);
  std::string name, id_name, id, segment_name;
  Format format;
  file >> name >> format.version;
  if (!file || name != "kvtier-store" || format.version < kStoreVersionOldest ||
      format.version > kStoreVersion) {
    return error_at(Errc::version, directory,
                    "FORMAT says \"" + name + " " + std::to_string(format.version) +
                        "\", this program reads \"kvtier-store " + std::to_string(kStoreVersion) +
                        "\"; nothing was changed. Give it another directory, or empty this one");
  }
  file >> id_name >> id >> segment_name >> format.segment_bytes;
  const auto bytes = from_hex(id);
  if (!file || id_name != "id" || segment_name != "segment_bytes" || !bytes) {
    return error_at(Errc::version, directory, "FORMAT is damaged; nothing was changed");
  }
  format.id = *bytes;
  return std::optional<Format>(format);
}

Result<void> write_format(const std::filesystem::path& directory, const Format& format) {
  std::ostringstream text;
  text << "kvtier-store " << kStoreVersion << "\nid " << to_hex(format.id) << "\nsegment_bytes "
       << format.segment_bytes << "\n";
  const std::string bytes = text.str();
  return replace_file(directory / "FORMAT", std::as_bytes(std::span(bytes)));
}

// What a store of this version has and none before it had, then FORMAT, which says so.
Result<void> write_files(const std::filesystem::path& directory, const Format& format) {
  if (const auto made = Erasures::make(directory / "ERASED"); !made) return made;
  return write_format(directory, format);
}

Result<void> make_directory(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (!failed && !std::filesystem::is_directory(path, failed) && !failed) {
    return error_at(Errc::io, path, "is not a directory");
  }
  if (failed) return error_at(Errc::io, path, "cannot be made: " + failed.message());
  return {};
}

// What an earlier version made by the umask alone. Not an error where it cannot be changed: then it
// is not this user's, or the file system is read-only.
void make_private(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) return;
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all, ignored);
}

Error not_there(const std::filesystem::path& path) {
  return error_at(Errc::not_found, path,
                  "FORMAT is not there: mount what was there, or take the directory out of the "
                  "configuration");
}

// A directory without FORMAT must hold nothing but what an interrupted first start leaves.
Result<void> check_unused(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::directory_iterator file(path, failed);
  for (; !failed && file != std::filesystem::directory_iterator(); file.increment(failed)) {
    const std::string name = file->path().filename();
    if (name == kNotMountedMark) {
      return error_at(Errc::io, path,
                      "is not mounted: it has the mark NOT-MOUNTED. It is waited for; mount it");
    }
    if (name != "LOCK" && name != "FORMAT.tmp" && name != "lost+found" &&
        !name.starts_with("ERASED")) {
      return error_at(
          Errc::invalid, path,
          "has no FORMAT file but is not empty (" + name + "); give it a directory of its own");
    }
  }
  if (failed) return error_at(Errc::io, path, "cannot be listed: " + failed.message());
  return {};
}

Result<UniqueFd> lock(const std::filesystem::path& directory) {
  const auto path = directory / "LOCK";
  auto fd = open_regular(path, O_RDWR | O_CREAT);
  if (!fd) return fd;
  if (::flock(fd->get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return errno_error(Errc::io, "disk tier: cannot lock " + path.string());
  return error_at(Errc::refused, directory,
                  "in use by another daemon, which holds " + path.string());
}

// Whether `path` is the file that `fd` holds open. Errors: io (there is none).
Result<bool> same_file(int fd, const std::filesystem::path& path) {
  struct stat held {
  }, found{};
  if (::fstat(fd, &held) != 0 || ::stat(path.c_str(), &found) != 0) {
    return errno_error(Errc::io, "disk tier: " + path.string());
  }
  return held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

// The page cache is dropped before the reading, so that the device is asked.
Result<void> write_and_read_back(const std::filesystem::path& path) {
  const auto failed = [&](const char* verb) { return file_error(verb, path); };
  std::array<std::uint64_t, kRecordAlignment / sizeof(std::uint64_t)> written{}, found{};
  if (::getrandom(written.data(), sizeof written, 0) != sizeof written) return failed("draw for");
  auto fd = open_regular(path, O_RDWR | O_CREAT | O_TRUNC);
  if (!fd) return fd.error();
  if (::pwrite(fd->get(), written.data(), sizeof written, 0) != sizeof written ||
      ::fsync(fd->get()) != 0) {
    return failed("write");
  }
  KVTIER_STORAGE_POINT("storage.health.probe_written");
  (void)::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED);
  if (::pread(fd->get(), found.data(), sizeof found, 0) != sizeof found) return failed("read");
  if (found != written) return error_at(Errc::io, path, "does not read as it was written");
  if (::unlink(path.c_str()) != 0) return failed("remove");
  return {};
}

// What a store that is made says: the directory may be one whose file system is not mounted.
void tell_of_new_store(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto absolute = std::filesystem::absolute(path, ignored).lexically_normal();
  struct stat here {
  }, above{};
  const bool mounted = ::stat(absolute.c_str(), &here) == 0 &&
                       ::stat(absolute.parent_path().c_str(), &above) == 0 &&
                       here.st_dev != above.st_dev;
  if (mounted) return spdlog::info("disk tier {}: a new store is made", path.string());
  spdlog::warn(
      "disk tier {}: a new store is made, on the file system of {}. If another file system belongs "
      "there: stop kvtierd, mount it, and put an empty file NOT-MOUNTED into the bare directory, "
      "so that it is waited for",
      path.string(), absolute.parent_path().string());
}

// Segments cannot be made under a smaller limit.
Result<void> check_file_size_limit(const std::filesystem::path& path, std::uint64_t segment_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= segment_bytes) {
    return {};
  }
  return error_at(Errc::io, path,
                  "files may have " + mebibytes(limit.rlim_cur) + ", and segments have " +
                      mebibytes(segment_bytes) + ": raise RLIMIT_FSIZE (LimitFSIZE= in a unit)");
}

// What never fits, or not for a directory that is yet to be made, is a mistake in the setting. One
// that was made before has blocks: others have filled its file system, and may leave it again.
Result<void> check_room(const RecordStoreOptions& options, bool made_before) {
  if (!options.check_free_space) return {};
  struct statvfs status {};
  if (::statvfs(options.directory.c_str(), &status) != 0) {
    return errno_error(Errc::io, "disk tier " + options.directory.string() + ": statvfs");
  }
  const std::uint64_t free_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  const std::uint64_t available = free_bytes + allocated_bytes(options.directory);
  if (options.capacity_bytes <= available) return {};
  const bool never = options.capacity_bytes > std::uint64_t{status.f_blocks} * status.f_frsize;
  return error_at(made_before && !never ? Errc::no_space : Errc::invalid, options.directory,
                  "the capacity is " + mebibytes(options.capacity_bytes) +
                      ", but free space and what the directory holds are only " +
                      mebibytes(available) + ": free some, or lower the capacity");
}

}  // namespace

std::uint64_t segment_capacity_bytes(const RecordStoreOptions& options) noexcept {
  const std::uint64_t share = options.capacity_bytes / kIndexShare + kIndexReserveBytes;
  if (options.capacity_bytes <= share || options.segment_bytes == 0) return 0;
  const std::uint64_t each = options.segment_bytes + segment_overhead_bytes(options.segment_bytes);
  return (options.capacity_bytes - share) / each * options.segment_bytes;
}

// The share but for FORMAT, LOCK, the probe's file and the directories themselves.
std::uint64_t index_capacity_bytes(const RecordStoreOptions& options) noexcept {
  constexpr std::uint64_t kSmallFilesBytes = 256_KiB;
  return options.capacity_bytes / kIndexShare + kIndexReserveBytes - kSmallFilesBytes;
}

bool StoreDirectory::may_come(const std::filesystem::path& directory, const Error& why) {
  if (why.code != Errc::io && why.code != Errc::no_space) return false;
  std::error_code ignored;
  return std::filesystem::exists(directory / "FORMAT", ignored) ||
         std::filesystem::exists(directory / kNotMountedMark, ignored);
}

Result<StoreDirectory> StoreDirectory::open(const RecordStoreOptions& options) {
  if (const auto valid = validate(options); !valid) return valid.error();
  // Before anything is made, so that another version's directory stays as it is.
  auto format = read_format(options.directory);
  if (!format) return format.error();
  if (!*format) {
    if (!options.may_create) return not_there(options.directory);
    if (const auto made = make_directory(options.directory); !made) return made.error();
    if (const auto unused = check_unused(options.directory); !unused) return unused.error();
  }
  auto held = lock(options.directory);
  if (!held) return held.error();

  format = read_format(options.directory);
  if (!format) return format.error();
  if (const auto room = check_room(options, format->has_value()); !room) return room.error();
  if (!*format) {
    if (!options.may_create) return not_there(options.directory);
    *format = Format{};
    (*format)->segment_bytes = options.segment_bytes;
    if (::getrandom((*format)->id.data(), (*format)->id.size(), 0) != 16) {
      return errno_error(Errc::io, "getrandom");
    }
    tell_of_new_store(options.directory);
    if (const auto written = write_files(options.directory, **format); !written) {
      return written.error();
    }
    KVTIER_STORAGE_POINT("storage.open.format_written");
  }
  if ((*format)->version != kStoreVersion) {
    if (const auto written = write_files(options.directory, **format); !written) {
      return written.error();
    }
    spdlog::info("disk tier {}: taken over from version {} of the format",
                 options.directory.string(), (*format)->version);
  }
  if ((*format)->segment_bytes != options.segment_bytes) {
    return error_at(Errc::invalid, options.directory,
                    "was made with segment_bytes = " + std::to_string((*format)->segment_bytes) +
                        ", the setting is " + std::to_string(options.segment_bytes) +
                        "; set it back, or empty the directory");
  }
  StoreDirectory directory;
  directory.path_ = options.directory;
  directory.id_ = (*format)->id;
  directory.lock_ = std::move(*held);
  directory.segment_bytes_ = options.segment_bytes;
  make_private(directory.index());
  make_private(directory.segments());
  return directory;
}

Result<void> StoreDirectory::look() const {
  const auto same = same_file(lock_.get(), path_ / "LOCK");
  if (!same) return same.error();
  if (*same) return {};
  return error_at(Errc::io, path_, "another directory has taken its place");
}

Result<void> StoreDirectory::probe() {
  const auto format = read_format(path_);
  if (!format) return format.error();
  if (!*format || (*format)->id != id_) {
    return error_at(Errc::io, path_, *format ? "holds another store" : "has no FORMAT file");
  }
  const auto same = same_file(lock_.get(), path_ / "LOCK");
  if (!same || !*same) {
    auto held = lock(path_);
    if (!held) return held.error();
    lock_ = std::move(*held);
  }
  if (const auto large = check_file_size_limit(path_, segment_bytes_); !large) return large;
  return write_and_read_back(path_ / "PROBE");
}

}  // namespace kvtier::storage
