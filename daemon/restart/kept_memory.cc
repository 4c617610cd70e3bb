#include "daemon/restart/kept_memory.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>

#include "core/base/points.h"
#include "daemon/limits.h"
#include "daemon/peers/process_watch.h"

namespace kvtier::daemon {
namespace {

using storage::Extent;
using storage::ExtentId;

constexpr std::string_view kStates = "state-";
constexpr std::string_view kExtents = "extent-";  // the data; its slot table is slots-NUMBER
constexpr std::string_view kSlots = "slots-";
// A manager that starts the next daemon has seen the last one end; what is left is that another
// process reaped it.
constexpr int kPredecessorMs = 5000;

std::string named(std::string_view kind, const std::string& number) {
  return std::string(kind) + number;
}

std::string number_of(const Extent& extent) {
  return std::to_string(extent.id().value);
}

// Whether the process is gone, within a few seconds.
bool gone(const ProcessId& process) {
  const auto pid = static_cast<pid_t>(process.pid);
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const auto start_time = start_time_of(pid);
  if (!fd || !start_time || *start_time != process.start_time) return true;
  pollfd ended{fd.get(), POLLIN, 0};
  return ::poll(&ended, 1, kPredecessorMs) == 1;
}

// The latest use of a block in the extent.
std::uint64_t newest_in(const Extent& extent) {
  std::uint64_t newest = 0;
  for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot) {
    const storage::SlotEntry& entry = extent.table().entry(slot);
    if (entry.state == storage::SlotState::sealed && entry.last_access < limits::kStampsMax)
      newest = std::max(newest, entry.last_access);
  }
  return newest;
}

// Of the tier's part that the extent is in.
std::uint32_t device_of(const Extent& extent) {
  return extent.id().value >> limits::kExtentBits;
}

// Why an extent with this slot table has no place in this daemon; empty: it has.
std::string misfit(const storage::SlotTableHeader& header, const std::string& number,
                   const KeptMemory::Room& room) {
  if (std::to_string(header.extent_id) != number)
    return "its slot table is that of extent " + std::to_string(header.extent_id);
  const auto& boot = storage::host_boot_id();
  if (std::memcmp(header.boot_id, boot.data(), boot.size()) != 0)
    return "it is of another boot of this host";
  if (header.owner != 0 && (!room.tenants || !room.tenants->pool_of_owner(header.owner)))
    return "the isolated tenant whose memory it was is not configured any more";
  const std::uint32_t device = header.extent_id >> limits::kExtentBits;
  if (static_cast<Tier>(header.tier) == Tier::host) {
    if (device != 0) return "its number is not one of host memory";
    return room.host_bytes == 0 ? "there is no host tier any more" : "";
  }
  if (static_cast<Tier>(header.tier) != Tier::device) return "it is of no memory tier";
  GpuUuid uuid;
  std::memcpy(uuid.data(), header.gpu, uuid.size());
  if (device >= room.gpus.size() || room.gpus[device].uuid != uuid) {
    return "[device] gpus has not " + to_string(uuid) + " in place " + std::to_string(device) +
           " any more";
  }
  return room.device_bytes == 0 ? "there is no device tier any more" : "";
}

}  // namespace

Result<KeptMemory::Extents> KeptMemory::take(PassedDescriptors& passed, const Room& room) {
  if (auto good = take_state(passed); !good) return good.error();
  std::set<std::string> numbers;
  for (const std::string_view kind : {kExtents, kSlots}) {
    for (const std::string& name : passed.names(kind)) numbers.insert(name.substr(kind.size()));
  }
  Extents extents;
  for (const std::string& number : numbers) {
    if (auto extent = take_extent(passed, number, room)) extents.push_back(std::move(extent));
  }
  keep_what_fits(extents, room);
  for (const auto& extent : extents) {
    const std::uint32_t own = extent->id().value & ((1U << limits::kExtentBits) - 1);
    left_.next_extent = std::max(left_.next_extent, own + 1);
  }
  store_.note_kept(2 * extents.size());
  auto state = KeptState::create(left_);
  if (!state) return state.error();
  state_.emplace(std::move(*state));
  KVTIER_POINT("daemon.extents.taken");
  return extents;
}

// The newest state that holds; where there is none, what there is of memory is taken all the same,
// but clients will not know it again.
Result<void> KeptMemory::take_state(PassedDescriptors& passed) {
  old_states_ = passed.names(kStates);
  for (const std::string& name : old_states_) {
    for (const UniqueFd& fd : passed.take(name)) {
      auto left = KeptState::read(fd);
      if (!left) {
        spdlog::warn("{} of an earlier kvtierd is discarded: {}", name, left.error().message);
      } else if (left->generation > left_.generation) {
        left_ = std::move(*left);
      }
    }
  }
  if (left_.generation == 0 || gone(left_.daemon)) return {};
  return make_error(Errc::refused, "another kvtierd (pid " + std::to_string(left_.daemon.pid) +
                                       ") still uses the memory that was passed: stop it first");
}

std::unique_ptr<Extent> KeptMemory::take_extent(PassedDescriptors& passed,
                                                const std::string& number, const Room& room) {
  auto memory = passed.take(named(kExtents, number));
  auto table = passed.take(named(kSlots, number));
  if (memory.size() != 1 || table.size() != 1) {
    discard(number, "only a part of it was kept");
    return nullptr;
  }
  auto copy = table[0].duplicate();
  auto slots = copy ? storage::SlotTable::adopt(std::move(*copy)) : copy.error();
  if (!slots) {
    discard(number, slots.error().message);
    return nullptr;
  }
  const storage::SlotTableHeader& header = slots->header();
  if (const std::string why = misfit(header, number, room); !why.empty()) {
    discard(number, why);
    return nullptr;
  }
  const std::uint32_t device = header.extent_id >> limits::kExtentBits;
  const bool cuda = static_cast<Tier>(header.tier) == Tier::device && room.gpus[device].cuda;
  auto extent = cuda ? storage::adopt_cuda_extent(room.gpus[device].number, std::move(memory[0]),
                                                  std::move(table[0]))
                     : storage::adopt_memfd_extent(std::move(memory[0]), std::move(table[0]));
  if (extent) return std::move(*extent);
  discard(number, extent.error().message);
  return nullptr;
}

// Per tier, and per GPU, within its cap: those used last.
void KeptMemory::keep_what_fits(Extents& extents, const Room& room) {
  std::map<const Extent*, std::uint64_t> newest;
  for (const auto& extent : extents) newest[extent.get()] = newest_in(*extent);
  std::ranges::sort(extents, std::greater{}, [&](const auto& e) { return newest[e.get()]; });
  std::map<std::pair<Tier, std::uint32_t>, std::uint64_t> bytes;
  std::erase_if(extents, [&](const auto& extent) {
    const std::uint64_t most = extent->tier() == Tier::host ? room.host_bytes : room.device_bytes;
    std::uint64_t& used = bytes[{extent->tier(), device_of(*extent)}];
    if (extent->shape().bytes <= most - used) {
      used += extent->shape().bytes;
      return false;
    }
    discard(number_of(*extent), "the " + std::string(name(extent->tier())) +
                                    " tier's capacity has no room for it any more");
    return true;
  });
}

void KeptMemory::discard(const std::string& number, const std::string& why) {
  spdlog::warn("extent {} of an earlier kvtierd is discarded: {}", number, why);
  for (const std::string_view kind : {kExtents, kSlots}) store_.remove(named(kind, number));
}

std::span<const std::byte> KeptMemory::encoding(const NamespaceId& id) const {
  const auto found = left_.encodings.find(id);
  if (found == left_.encodings.end()) return {};
  return found->second;
}

void KeptMemory::taken() {
  left_.encodings.clear();
  state_->set_complete();
  store_.put(named(kStates, std::to_string(state_->generation())), state_->fd());
  KVTIER_POINT("daemon.state.stored");
  for (const std::string& name : old_states_) store_.remove(name);
  old_states_.clear();
}

void KeptMemory::created(const Extent& extent) {
  store_.put(named(kSlots, number_of(extent)), extent.table().fd());
  KVTIER_POINT("daemon.slots.stored");
  store_.put(named(kExtents, number_of(extent)), extent.memory_fd());
  KVTIER_POINT("daemon.extent.stored");
}

void KeptMemory::retired(const Extent& extent) {
  for (const std::string_view kind : {kExtents, kSlots}) {
    store_.remove(named(kind, number_of(extent)));
    KVTIER_POINT("daemon.extent.removed");
  }
}

// The state is written on and on. What of it nobody needs any more goes when it is full.
bool KeptMemory::begin_anew() {
  if (!live || !old_states_.empty()) return false;
  auto fresh =
      KeptState::create({state_->generation(), state_->lineage(), state_->next_extent(), {}, {}});
  if (!fresh) return false;
  for (const auto encoded : live()) {
    if (!fresh->remember(encoded)) return false;
  }
  fresh->set_complete();
  store_.put(named(kStates, std::to_string(fresh->generation())), fresh->fd());
  store_.remove(named(kStates, std::to_string(state_->generation())));
  *state_ = std::move(*fresh);
  return true;
}

void KeptMemory::remember(std::span<const std::byte> encoded) {
  if (state_->remember(encoded) || begin_anew() || std::exchange(full_noted_, true)) return;
  spdlog::warn(
      "no room to keep a namespace over a restart: its blocks in memory wait for a client "
      "that opens it");
}

}  // namespace kvtier::daemon
