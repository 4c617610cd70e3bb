#include "storage/index/erasures.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "core/record/digest.h"
#include "storage/index/points.h"
#include "storage/index/regular_file.h"
#include "storage/index/replace_file.h"

namespace kvtier::storage {
namespace {

// As docs/format.md has it.
struct Entry {
  std::uint32_t of = 0;
  std::uint32_t reserved = 0;
  NamespaceId ns{};
  Key key{};
  std::uint64_t era = 0;
  std::uint64_t checksum = 0;  // XXH3-64 of what is before it
};
static_assert(sizeof(Entry) == 56 && std::is_trivially_copyable_v<Entry>);

std::uint64_t checksum_of(const Entry& entry) noexcept {
  return xxh3_64({reinterpret_cast<const std::byte*>(&entry), offsetof(Entry, checksum)});
}

Entry entry_of(const Erasure& erasure, std::uint64_t era) noexcept {
  Entry entry;
  entry.of = static_cast<std::uint32_t>(erasure.of);
  entry.ns = erasure.ns;
  entry.key = erasure.key;
  entry.era = era;
  entry.checksum = checksum_of(entry);
  return entry;
}

// Later than any era that was counted from 1.
std::uint64_t era_after_any() noexcept {
  using namespace std::chrono;
  return static_cast<std::uint64_t>(
      duration_cast<microseconds>(system_clock::now().time_since_epoch()).count());
}

}  // namespace

Result<void> Erasures::make(const std::filesystem::path& file) {
  return replace_file(file, {});
}

Result<Erasures> Erasures::open(const std::filesystem::path& file) {
  Erasures log(file);
  auto opened = open_regular(file, O_RDONLY);
  bool good = false;
  if (!opened && opened.error().code != Errc::not_found) return opened.error();
  const UniqueFd fd = opened ? std::move(*opened) : UniqueFd();
  struct stat status {};
  if (fd) {
    if (::fstat(fd.get(), &status) != 0) return file_error("read", file);
    std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t got = ::read(fd.get(), bytes.data() + at, bytes.size() - at);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return file_error("read", file);
      at += static_cast<std::size_t>(got);
    }
    good = log.read(bytes);
  }
  if (!good) {
    log.era_ = std::max(log.era_, era_after_any());
    log.note({Erasure::Of::all, {}, {}}, log.era_++);
    spdlog::warn(
        "{} is {}: what was erased is not known, so if the index is lost too, no record that was "
        "written before now comes back",
        file.string(), fd ? "damaged" : "missing");
  }
  if (!good || log.written_ * sizeof(Entry) != static_cast<std::size_t>(status.st_size)) {
    if (const auto rewritten = log.rewrite(); !rewritten) return rewritten.error();
  }
  log.fd_ = UniqueFd(::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!log.fd_) return file_error("write", file);
  return log;
}

// An entry that was cut short at the end was never acknowledged.
bool Erasures::read(std::span<const std::byte> bytes) {
  bool good = true;
  for (; bytes.size() >= sizeof(Entry); bytes = bytes.subspan(sizeof(Entry))) {
    Entry entry;
    std::memcpy(&entry, bytes.data(), sizeof entry);
    const bool known = entry.of >= static_cast<std::uint32_t>(Erasure::Of::key) &&
                       entry.of <= static_cast<std::uint32_t>(Erasure::Of::all);
    if (!known || entry.checksum != checksum_of(entry)) {
      good = false;
      continue;
    }
    note({static_cast<Erasure::Of>(entry.of), entry.ns, entry.key}, entry.era);
    era_ = std::max(era_, entry.era + 1);
    ++written_;
  }
  return good;
}

void Erasures::note(const Erasure& erasure, std::uint64_t era) {
  switch (erasure.of) {
    case Erasure::Of::all:
      all_ = std::max(all_, era);
      namespaces_.clear();  // all of them are of this era or of earlier ones
      return;
    case Erasure::Of::ns: {
      OfNamespace& of = namespaces_[erasure.ns];
      of.all = std::max(of.all, era);
      std::erase_if(of.keys, [&](const auto& key) { return key.second <= of.all; });
      return;
    }
    case Erasure::Of::key: {
      OfNamespace& of = namespaces_[erasure.ns];
      std::uint64_t& up_to = of.keys[erasure.key];
      up_to = std::max(up_to, era);
      if (of.keys.size() > kKeysMax) {
        for (const auto& [key, at] : of.keys) of.all = std::max(of.all, at);
        of.keys.clear();
      }
      return;
    }
  }
}

bool Erasures::covers(const RecordHeader& record) const {
  // 0: nothing was erased; an earlier version's records are of era 0.
  const auto up_to = [&](std::uint64_t era) { return era != 0 && record.era <= era; };
  if (up_to(all_)) return true;
  const auto of = namespaces_.find(record.ns);
  if (of == namespaces_.end()) return false;
  if (up_to(of->second.all)) return true;
  const auto key = of->second.keys.find(record.key);
  return key != of->second.keys.end() && up_to(key->second);
}

std::size_t Erasures::entries() const noexcept {
  std::size_t count = all_ != 0 ? 1 : 0;
  for (const auto& [id, of] : namespaces_) count += (of.all != 0 ? 1 : 0) + of.keys.size();
  return count;
}

Result<void> Erasures::add(std::span<const Erasure> erasures) {
  if (erasures.empty()) return {};
  for (const Erasure& erasure : erasures) note(erasure, era_);
  const bool fits = written_ + erasures.size() <= kEntriesMax;
  if (const auto added = fits ? append(erasures) : rewrite(); !added) return added;
  KVTIER_STORAGE_POINT("storage.erasures.added");
  ++era_;
  return {};
}

Result<void> Erasures::append(std::span<const Erasure> erasures) {
  std::vector<Entry> entries;
  entries.reserve(erasures.size());
  for (const Erasure& erasure : erasures) entries.push_back(entry_of(erasure, era_));
  const auto written = write_all(fd_.get(), std::as_bytes(std::span(entries)), file_);
  if (written && ::fdatasync(fd_.get()) == 0) {
    written_ += entries.size();
    return {};
  }
  // A part may be there, and what follows it would not be read.
  const Error why = written ? file_error("sync", file_) : written.error();
  if (const auto rewritten = rewrite(); !rewritten) return why;
  return {};
}

Result<void> Erasures::rewrite() {
  // More namespaces than there is room for: all of what was before goes with them.
  if (entries() > kEntriesMax / 2) {
    for (auto& [id, of] : namespaces_) {
      for (const auto& [key, at] : of.keys) of.all = std::max(of.all, at);
      of.keys.clear();
    }
  }
  if (entries() > kEntriesMax / 2) {
    for (const auto& [id, of] : namespaces_) all_ = std::max(all_, of.all);
    namespaces_.clear();
  }
  std::vector<Entry> log;
  if (all_ != 0) log.push_back(entry_of({Erasure::Of::all, {}, {}}, all_));
  for (const auto& [id, of] : namespaces_) {
    if (of.all != 0) log.push_back(entry_of({Erasure::Of::ns, id, {}}, of.all));
    for (const auto& [key, at] : of.keys) log.push_back(entry_of({Erasure::Of::key, id, key}, at));
  }
  if (const auto replaced = replace_file(file_, std::as_bytes(std::span(log))); !replaced)
    return replaced;
  written_ = log.size();
  fd_ = UniqueFd(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd_) return file_error("write", file_);
  return {};
}

}  // namespace kvtier::storage
