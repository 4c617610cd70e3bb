// A BlockDevice around a real one that can lose what was not synced, as a power cut does, for
// tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "storage/device/block_device.h"

namespace kvtier::storage {

// What has been written since the last sync, with what lay there before. The device's thread fills
// it; freeze() and cut() are called while the device is idle or gone.
class PowerCut {
 public:
  // From now on no sync makes anything durable: the cut has happened, the process has not noticed.
  void freeze() { frozen_ = true; }
  // Undoes what was not durable: each write as a whole, not at all, or in any of its pieces of 512
  // or 4,096 bytes, as `random` says; the header page of each file likewise.
  void cut(std::mt19937& random);

 private:
  friend class PowerCutDevice;
  struct Written {
    std::filesystem::path path;
    std::uint64_t offset = 0;
    std::vector<std::byte> before;
    std::uint64_t tag = 0;
    bool completed = false;
    bool durable = false;
    bool doubtful = false;  // a sync that covered it failed: no later one says anything of it
  };
  void before_write(const std::filesystem::path& path, const BlockDevice::Transfer& transfer);
  void completed(std::uint64_t tag);
  void begin_sync(const std::filesystem::path& path);
  void end_sync(bool succeeded);

  bool frozen_ = false;
  std::vector<Written> written_;
  std::map<std::filesystem::path, std::vector<std::byte>> headers_;  // as last synced; empty: never
  std::filesystem::path syncing_;
  std::vector<std::size_t> covered_;  // of written_, by the sync under way
};

// `power` outlives the device. One sync at a time, with tag 0.
std::unique_ptr<BlockDevice> make_power_cut_device(std::unique_ptr<BlockDevice> inner,
                                                   PowerCut& power);

}  // namespace kvtier::storage
