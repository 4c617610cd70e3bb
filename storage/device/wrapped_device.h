// A BlockDevice around another one, which does all the work: what a wrapper does otherwise it
// overrides.
#pragma once

#include <memory>
#include <utility>

#include "storage/device/block_device.h"

namespace kvtier::storage {

class WrappedDevice : public BlockDevice {
 public:
  explicit WrappedDevice(std::unique_ptr<BlockDevice> inner)
      : BlockDevice(inner->limits()), inner_(std::move(inner)) {}

  void wake() override { inner_->wake(); }

 protected:
  Result<void> open_file_impl(FileId file, UniqueFd, const std::filesystem::path& path) override {
    return inner_->open_file(file, path);
  }
  void close_file_impl(FileId file) override { inner_->close_file(file); }
  Result<void> add_buffer_impl(BufferId buffer, std::span<std::byte> memory) override {
    return inner_->add_buffer(buffer, memory);
  }
  void pin_buffer_impl(BufferId buffer, std::span<std::byte>) override {
    inner_->pin_buffer(buffer);
  }
  void unpin_buffer_impl(BufferId buffer) override { inner_->unpin_buffer(buffer); }
  void remove_buffer_impl(BufferId buffer) override { inner_->remove_buffer(buffer); }
  void read_impl(const Transfer& transfer) override { inner_->read(transfer); }
  void write_impl(const Transfer& transfer) override { inner_->write(transfer); }
  void sync_impl(FileId file, std::uint64_t tag) override { inner_->sync(file, tag); }
  void submit_impl() override { inner_->submit(); }
  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    inner_->reap(out, wait, at_most);
  }

  BlockDevice& inner() noexcept { return *inner_; }

 private:
  const std::unique_ptr<BlockDevice> inner_;
};

}  // namespace kvtier::storage
