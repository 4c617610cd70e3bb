#include "storage/store/bad_places.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "core/record/digest.h"
#include "storage/index/regular_file.h"
#include "storage/index/replace_file.h"

namespace kvtier::storage {
namespace {

// As docs/format.md has it.
struct Entry {
  std::uint32_t segment = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH3-64 of what is before it
};
static_assert(sizeof(Entry) == 32 && std::is_trivially_copyable_v<Entry>);

std::uint64_t sum_of(const Entry& entry) noexcept {
  return xxh3_64({reinterpret_cast<const std::byte*>(&entry), offsetof(Entry, checksum)});
}

}  // namespace

Result<BadPlaces> BadPlaces::open(const std::filesystem::path& file) {
  BadPlaces places(file);
  if (const auto read = places.read(); !read) return read.error();
  return places;
}

Result<void> BadPlaces::read() {
  const auto contents = read_small_file(file_);
  if (!contents && contents.error().code == Errc::not_found) return {};
  if (!contents) return contents.error();
  written_ = contents->size() / sizeof(Entry);
  std::size_t damaged = 0;
  for (std::size_t n = 0; n < written_; ++n) {
    Entry entry;
    std::memcpy(&entry, contents->data() + n * sizeof entry, sizeof entry);
    if (entry.checksum == sum_of(entry)) {
      places_.push_back({entry.segment, entry.offset, entry.bytes});
    } else {
      ++damaged;
    }
  }
  if (damaged > 0) {
    spdlog::warn("{}: {} entries are damaged; the places they named are tried again",
                 file_.string(), damaged);
  }
  return {};
}

Result<void> BadPlaces::open_to_write() {
  auto fd = open_regular(file_, O_RDWR | O_CREAT);
  if (!fd) return fd.error();
  const UniqueFd directory(::open(file_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || ::fsync(directory.get()) != 0) return file_error("sync", file_.parent_path());
  fd_ = std::move(*fd);
  return {};
}

Result<void> BadPlaces::add(const BadPlace& place) {
  if (written_ >= kMost) {
    return make_error(Errc::no_space, file_.string() + " has as many bad places as there can be (" +
                                          std::to_string(kMost) + "): replace the device");
  }
  if (const auto opened = fd_ ? Result<void>{} : open_to_write(); !opened) return opened;
  Entry entry;
  entry.segment = place.segment;
  entry.offset = place.offset;
  entry.bytes = place.bytes;
  entry.checksum = sum_of(entry);
  // Over one that was cut short.
  const auto at = static_cast<off_t>(written_ * sizeof entry);
  if (::pwrite(fd_.get(), &entry, sizeof entry, at) != sizeof entry)
    return file_error("write", file_);
  if (::fdatasync(fd_.get()) != 0) return file_error("sync", file_);
  ++written_;
  places_.push_back(place);
  return {};
}

}  // namespace kvtier::storage
