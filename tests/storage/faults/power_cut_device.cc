#include "tests/storage/faults/power_cut_device.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/fd.h"
#include "core/record/record.h"
#include "storage/device/wrapped_device.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kSyncTag = 0;

std::vector<std::byte> read_at(const std::filesystem::path& path, std::uint64_t offset,
                               std::size_t bytes) {
  std::vector<std::byte> found(bytes);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  KVTIER_CHECK(::pread(fd.get(), found.data(), bytes, static_cast<off_t>(offset)) ==
               static_cast<ssize_t>(bytes));
  return found;
}

void write_at(const std::filesystem::path& path, std::uint64_t offset,
              std::span<const std::byte> bytes) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  KVTIER_CHECK(::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
               static_cast<ssize_t>(bytes.size()));
}

}  // namespace

void PowerCut::before_write(const std::filesystem::path& path,
                            const BlockDevice::Transfer& transfer) {
  written_.push_back({path, transfer.offset, read_at(path, transfer.offset, transfer.bytes),
                      transfer.tag, false, false, false});
  headers_.try_emplace(path);
}

void PowerCut::completed(std::uint64_t tag) {
  for (Written& write : written_) write.completed = write.completed || write.tag == tag;
}

void PowerCut::begin_sync(const std::filesystem::path& path) {
  syncing_ = path;
  covered_.clear();
  for (std::size_t i = 0; i < written_.size(); ++i) {
    const Written& write = written_[i];
    if (write.completed && !write.doubtful && write.path == path) covered_.push_back(i);
  }
}

void PowerCut::end_sync(bool succeeded) {
  if (!succeeded) {
    for (const std::size_t i : covered_) written_[i].doubtful = true;
  }
  if (!succeeded || frozen_) return;
  for (const std::size_t i : covered_) {
    written_[i].durable = true;
    // What was written over is not undone below it, doubtful or not.
    for (std::size_t earlier = 0; earlier < i; ++earlier) {
      Written& below = written_[earlier];
      if (below.path == written_[i].path && below.offset == written_[i].offset &&
          below.before.size() <= written_[i].before.size()) {
        below.durable = true;
      }
    }
  }
  headers_[syncing_] = read_at(syncing_, 0, kRecordAlignment);
}

void PowerCut::cut(std::mt19937& random) {
  for (auto write = written_.rbegin(); write != written_.rend(); ++write) {
    const auto fate = random() % 4;
    if (write->durable || fate == 0) continue;
    const std::span<const std::byte> before = write->before;
    const std::size_t piece = fate == 1 ? before.size() : fate == 2 ? 512 : 4096;
    for (std::size_t at = 0; at < before.size(); at += piece) {
      if (fate != 1 && random() % 2 == 0) continue;
      const auto lost = before.subspan(at, std::min(piece, before.size() - at));
      write_at(write->path, write->offset + at, lost);
    }
  }
  for (const auto& [path, synced] : headers_) {
    if (random() % 2 == 0) continue;
    write_at(path, 0, synced.empty() ? std::vector<std::byte>(kRecordAlignment) : synced);
  }
}

class PowerCutDevice final : public WrappedDevice {
 public:
  PowerCutDevice(std::unique_ptr<BlockDevice> inner, PowerCut& power)
      : WrappedDevice(std::move(inner)), power_(power) {}

  const char* kind() const noexcept override { return "power cut"; }

 protected:
  Result<void> open_file_impl(FileId file, UniqueFd, const std::filesystem::path& path) override {
    paths_[file.value] = path;
    return inner().open_file(file, path);
  }
  void write_impl(const Transfer& transfer) override {
    power_.before_write(paths_.at(transfer.file.value), transfer);
    inner().write(transfer);
  }
  void sync_impl(FileId file, std::uint64_t tag) override {
    KVTIER_CHECK(tag == kSyncTag);
    power_.begin_sync(paths_.at(file.value));
    inner().sync(file, tag);
  }

  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    const std::size_t before = out.size();
    inner().reap(out, wait, at_most);
    for (std::size_t i = before; i < out.size(); ++i) {
      if (out[i].tag == kSyncTag) {
        power_.end_sync(out[i].result.has_value());
      } else {
        power_.completed(out[i].tag);
      }
    }
  }

 private:
  PowerCut& power_;
  std::map<std::uint32_t, std::filesystem::path> paths_;
};

std::unique_ptr<BlockDevice> make_power_cut_device(std::unique_ptr<BlockDevice> inner,
                                                   PowerCut& power) {
  return std::make_unique<PowerCutDevice>(std::move(inner), power);
}

}  // namespace kvtier::storage
