#include "tests/storage/faults/standing_device.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "storage/device/wrapped_device.h"

namespace kvtier::storage {
namespace {

class StandingDevice final : public WrappedDevice {
 public:
  StandingDevice(std::unique_ptr<BlockDevice> inner, std::function<bool()> stands)
      : WrappedDevice(std::move(inner)), stands_(std::move(stands)) {}

  const char* kind() const noexcept override { return "standing"; }

 protected:
  Result<void> open_file_impl(FileId file, UniqueFd, const std::filesystem::path& path) override {
    stand();
    return inner().open_file(file, path);
  }
  void close_file_impl(FileId file) override {
    stand();
    inner().close_file(file);
  }
  Result<void> add_buffer_impl(BufferId buffer, std::span<std::byte> memory) override {
    stand();
    return inner().add_buffer(buffer, memory);
  }
  void pin_buffer_impl(BufferId buffer, std::span<std::byte>) override {
    stand();
    inner().pin_buffer(buffer);
  }
  void unpin_buffer_impl(BufferId buffer) override {
    stand();
    inner().unpin_buffer(buffer);
  }
  void remove_buffer_impl(BufferId buffer) override {
    stand();
    inner().remove_buffer(buffer);
  }
  void submit_impl() override {
    stand();
    inner().submit();
  }
  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    stand();
    inner().reap(out, wait, at_most);
    stand();
  }

 private:
  void stand() const {
    while (stands_()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  const std::function<bool()> stands_;
};

}  // namespace

std::unique_ptr<BlockDevice> make_standing_device(std::unique_ptr<BlockDevice> inner,
                                                  std::function<bool()> stands) {
  return std::make_unique<StandingDevice>(std::move(inner), std::move(stands));
}

std::function<bool()> standstill_from_environment() {
  const char* set = std::getenv("KVTIER_DISK_STANDS");
  if (set == nullptr || *set == '\0') return {};
  return [file = std::string(set)] { return ::access(file.c_str(), F_OK) == 0; };
}

}  // namespace kvtier::storage
