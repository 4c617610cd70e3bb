#include "storage/disk/store_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "client/base/units.h"
#include "client/record/record.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kIndexReserveBytes =
    32_MiB;  // write-ahead log, write buffers being flushed
constexpr std::uint64_t kIndexShare = 64;

struct Format {
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
  const auto path = directory / "FORMAT";
  std::ifstream file(path);
  if (!file) {
    const int code = errno;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return std::optional<Format>{};
    return error_at(Errc::io, path, std::string("cannot be read: ") + std::strerror(code));
  }
  std::string name, id_name, id, segment_name;
  std::uint32_t version = 0;
  Format format;
  file >> name >> version;
  if (!file || name != "kvtier-store" || version != kStoreVersion) {
    return error_at(Errc::version, directory,
                    "FORMAT says \"" + name + " " + std::to_string(version) +
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

// Through a temporary file and a rename, so that FORMAT is whole or absent.
Result<void> write_format(const std::filesystem::path& directory, const Format& format) {
  std::ostringstream text;
  text << "kvtier-store " << kStoreVersion << "\nid " << to_hex(format.id) << "\nsegment_bytes "
       << format.segment_bytes << "\n";
  const std::string bytes = text.str();
  const auto temporary = directory / "FORMAT.tmp";
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd || ::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      ::fsync(fd.get()) != 0 || ::rename(temporary.c_str(), (directory / "FORMAT").c_str()) != 0) {
    return errno_error(Errc::io, "disk tier " + directory.string() + ": cannot write FORMAT");
  }
  UniqueFd parent(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  (void)::fsync(parent.get());
  return {};
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

// A directory without FORMAT must hold nothing but what an interrupted first start leaves.
Result<void> check_unused(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::directory_iterator file(path, failed);
  for (; !failed && file != std::filesystem::directory_iterator(); file.increment(failed)) {
    const std::string name = file->path().filename();
    if (name != "LOCK" && name != "FORMAT.tmp" && name != "lost+found") {
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
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return errno_error(Errc::io, "disk tier: cannot write " + path.string());
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return errno_error(Errc::io, "disk tier: cannot lock " + path.string());
  return error_at(Errc::refused, directory,
                  "in use by another daemon, which holds " + path.string());
}

std::uint64_t allocated_bytes(const std::filesystem::path& directory) {
  std::uint64_t bytes = 0;
  std::error_code failed;
  std::filesystem::recursive_directory_iterator file(directory, failed);
  for (; !failed && file != decltype(file)(); file.increment(failed)) {
    struct stat status {};
    if (::lstat(file->path().c_str(), &status) == 0) {
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

Result<void> check_room(const RecordStoreOptions& options) {
  if (!options.check_free_space) return {};
  struct statvfs status {};
  if (::statvfs(options.directory.c_str(), &status) != 0) {
    return errno_error(Errc::io, "disk tier " + options.directory.string() + ": statvfs");
  }
  const std::uint64_t free_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  const std::uint64_t available = free_bytes + allocated_bytes(options.directory);
  if (options.capacity_bytes <= available) return {};
  return error_at(Errc::invalid, options.directory,
                  "the capacity is " + mebibytes(options.capacity_bytes) +
                      ", but free space and what the directory holds are only " +
                      mebibytes(available));
}

}  // namespace

std::uint64_t segment_capacity_bytes(const RecordStoreOptions& options) noexcept {
  const std::uint64_t share = options.capacity_bytes / kIndexShare + kIndexReserveBytes;
  return options.capacity_bytes > share ? options.capacity_bytes - share : 0;
}

Result<StoreDirectory> StoreDirectory::open(const RecordStoreOptions& options) {
  if (const auto valid = validate(options); !valid) return valid.error();
  // Before anything is made, so that another version's directory stays as it is.
  auto format = read_format(options.directory);
  if (!format) return format.error();
  if (const auto made = make_directory(options.directory); !made) return made.error();
  if (!*format) {
    if (const auto unused = check_unused(options.directory); !unused) return unused.error();
  }
  auto held = lock(options.directory);
  if (!held) return held.error();

  format = read_format(options.directory);
  if (!format) return format.error();
  if (const auto room = check_room(options); !room) return room.error();
  if (!*format) {
    *format = Format{};
    (*format)->segment_bytes = options.segment_bytes;
    if (::getrandom((*format)->id.data(), (*format)->id.size(), 0) != 16) {
      return errno_error(Errc::io, "getrandom");
    }
    if (const auto written = write_format(options.directory, **format); !written) {
      return written.error();
    }
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
  return directory;
}

}  // namespace kvtier::storage
