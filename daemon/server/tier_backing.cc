#include "daemon/server/tier_backing.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "daemon/limits.h"
#include "storage/store/late_store.h"

namespace kvtier::daemon {

namespace {

Result<void> fits(std::uint64_t capacity_bytes, const TierBacking::Gpu& gpu) {
  if (gpu.memory_bytes == 0 || capacity_bytes <= gpu.memory_bytes) return {};
  return make_error(Errc::invalid, "[device] capacity is more than the " +
                                       std::to_string(gpu.memory_bytes >> 20) + " MiB of GPU " +
                                       std::to_string(gpu.number) + " (" + gpu.name +
                                       "): give less");
}

}  // namespace

Result<void> TierBacking::open(const Config& config) {
  if (auto good = open_gpus(config.device); !good) return good;
  if (auto good = open_disks(config.disk); !good) return good;
  if (auto good = open_remote(config.remote); !good) return good;
  host_ = storage::make_memfd_extents(Tier::host, {config.host.huge_pages, config.host.prefault});
  const auto elsewhere = [this](std::function<void()> task) { disposal_.run(std::move(task)); };
  host_->elsewhere = elsewhere;
  for (const Gpu& gpu : gpus_) gpu.extents->elsewhere = elsewhere;
  return {};
}

Result<void> TierBacking::open_gpus(const Config::Device& device) {
  if (device.capacity_bytes == 0) return {};
  for (const std::uint32_t number : device.gpus) {
    if (device.backend == DeviceBackend::memory) {
      GpuUuid uuid{};
      uuid.back() = static_cast<std::byte>(number);
      gpus_.push_back(
          {uuid, number, "memory",
           storage::make_memfd_extents(Tier::device, {device.huge_pages, device.prefault, uuid})});
      continue;
    }
    auto extents = storage::make_cuda_extents(static_cast<int>(number));
    if (!extents) {
      return make_error(extents.error().code,
                        "[device] backend = \"cuda\", gpus: " + extents.error().message);
    }
    const auto gpu = CudaDriver::get().value()->device(static_cast<int>(number));
    if (!gpu) return gpu.error();
    gpus_.push_back({gpu->uuid, number, gpu->name, std::move(*extents), gpu->memory_bytes});
    if (auto good = fits(device.capacity_bytes, gpus_.back()); !good) return good;
    spdlog::info("device tier {}: GPU {} ({}, {})", gpus_.size() - 1, number, gpu->name,
                 to_string(gpu->uuid));
  }
  return {};
}

Result<void> TierBacking::fits_gpus(std::uint64_t capacity_bytes) const {
  for (const Gpu& gpu : gpus_) {
    if (auto good = fits(capacity_bytes, gpu); !good) return good;
  }
  return {};
}

storage::RecordStoreOptions TierBacking::store_options(
    const Config::Disk& disk, const std::filesystem::path& directory) const {
  storage::RecordStoreOptions options;
  options.directory = directory;
  options.capacity_bytes = disk.capacity_bytes;
  options.segment_bytes = disk.segment_bytes;
  options.sqpoll = disk.io == DiskIo::sqpoll;
  options.force_threads = disk.io == DiskIo::threads;
  options.progress = ports_.progress;
  return options;
}

Result<void> TierBacking::open_disks(const Config::Disk& disk) {
  constexpr std::uint64_t kSegmentsMax = 1ULL << limits::kDiskSegmentBits;
  if (disk.capacity_bytes / disk.segment_bytes >= kSegmentsMax) {
    return make_error(Errc::invalid, "[disk] capacity is more than " +
                                         std::to_string(kSegmentsMax) +
                                         " segments: give a larger segment_size");
  }
  std::vector<std::unique_ptr<storage::StoreOpening>> openings;
  for (const auto& directory : disk.directories) {
    ports_.progress("Opening the disk tier in " + directory.string());
    const auto options = store_options(disk, directory);
    segments_bytes_ = storage::segment_capacity_bytes(options);
    openings.push_back(
        std::make_unique<storage::StoreOpening>(options, ports_.post, ports_.wrap_device));
  }
  for (std::size_t i = 0; i < openings.size(); ++i) {
    auto store = openings[i]->take(limits::kOpenPatience);
    if (!store) return store.error();
    disks_.push_back({disk.directories[i].string(), std::move(*store), {}});
  }
  return {};
}

// It connects by itself: a server that is not there keeps nobody from starting.
Result<void> TierBacking::open_remote(const Config::Remote& remote) {
  if (remote.url.empty()) return {};
  storage::RemoteOptions options;
  options.url = remote.url;
  options.password_file = remote.password_file;
  options.tls_ca_file = remote.tls_ca_file;
  options.tls_cert_file = remote.tls_cert_file;
  options.tls_key_file = remote.tls_key_file;
  options.cluster = remote.cluster;
  options.key_file = remote.key_file;
  options.connections = remote.connections;
  options.read_bytes_per_s = remote.read_bytes_per_s;
  options.write_bytes_per_s = remote.write_bytes_per_s;
  options.expiry = std::chrono::seconds(remote.expiry_s);
  auto store = ports_.open_remote(options, ports_.post);
  if (!store) return make_error(store.error().code, "[remote] " + store.error().message);
  remote_ = std::move(*store);
  return {};
}

std::string TierBacking::name_of_part(Tier tier, std::uint32_t device) const {
  if (tier == Tier::disk) return disks_[device].directory;
  if (tier == Tier::device && device < gpus_.size())
    return "GPU " + std::to_string(gpus_[device].number) + " (" + gpus_[device].name + ")";
  return "host memory";
}

void TierBacking::register_extent(const storage::Extent& extent) {
  if (extent.tier() != Tier::host) return;
  for (const Disk& disk : disks_) {
    if (auto good = disk.store->register_extent(extent); !good) {
      spdlog::warn("extent {} is not registered for disk I/O: {}", extent.id().value,
                   good.error().message);
    }
  }
  if (remote_ == nullptr) return;
  if (auto good = remote_->register_extent(extent); !good) {
    spdlog::warn("extent {} is not registered for the remote tier: {}", extent.id().value,
                 good.error().message);
  }
}

// An extent's memory is the disks' too until each disk's thread has said that it has let go of it,
// and then takes the kernel a while to give back. Nobody waits for either.
void TierBacking::dispose(std::unique_ptr<storage::Extent> extent, std::function<void()> gone) {
  struct Leaving {
    std::shared_ptr<storage::Extent> extent;
    std::function<void()> gone;
    std::size_t users = 1;
  };
  const auto leaving = std::make_shared<Leaving>();
  leaving->extent = std::move(extent);
  leaving->gone = std::move(gone);
  const auto let_go = [this, leaving] {
    if (--leaving->users > 0) return;
    disposal_.run(
        [this, last = std::move(leaving->extent), gone = std::move(leaving->gone)]() mutable {
          last.reset();
          ports_.post(std::move(gone));
        });
  };
  const storage::ExtentId id = leaving->extent->id();
  for (const Disk& disk : disks_) {
    if (leaving->extent->tier() != Tier::host) break;
    ++leaving->users;
    disk.store->forget_extent(id, let_go);
  }
  if (remote_ != nullptr && leaving->extent->tier() == Tier::host) {
    ++leaving->users;
    remote_->forget_extent(id, let_go);
  }
  let_go();
}

void TierBacking::note_write_rates(WriteRate::Time now) {
  for (Disk& disk : disks_) disk.write_rate.note(now, disk.store->stats().bytes_written);
}

// The one wait of the control thread for a disk's, with a bound: nobody is served any more.
bool TierBacking::close() {
  struct Closing {
    std::mutex mutex;
    std::condition_variable closed;
    std::size_t open;
  };
  const auto closing = std::make_shared<Closing>();
  std::vector<std::function<void()>> closes;
  for (const Disk& disk : disks_) closes.emplace_back([&store = *disk.store] { store.close(); });
  if (remote_ != nullptr) closes.emplace_back([store = remote_] { store->close(); });
  closing->open = closes.size();
  for (const auto& close_one : closes) {
    const auto close = [closing, close_one] {
      close_one();
      const std::lock_guard lock(closing->mutex);
      --closing->open;
      closing->closed.notify_one();
    };
    try {
      std::thread(close).detach();
    } catch (const std::system_error&) {
      close();
    }
  }
  std::unique_lock lock(closing->mutex);
  if (closing->closed.wait_for(lock, limits::kCloseMax, [&] { return closing->open == 0; }))
    return true;
  spdlog::error(
      "{} of {} disk directories and remote stores have not closed within {} s: kvtierd ends "
      "without them; what was not written by then is a miss after the restart",
      closing->open, closes.size(), limits::kCloseMax.count());
  return false;
}

}  // namespace kvtier::daemon
