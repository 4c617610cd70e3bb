#include "storage/device/throttled_device.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "storage/device/wrapped_device.h"

namespace kvtier::storage {
namespace {

class ThrottledDevice final : public WrappedDevice {
 public:
  ThrottledDevice(std::unique_ptr<BlockDevice> inner, const Throttle& throttle)
      : WrappedDevice(std::move(inner)), throttle_(throttle) {
    KVTIER_CHECK(throttle.bytes_per_s > 0);
  }

  const char* kind() const noexcept override { return "throttled"; }
  void wake() override {
    woken_ = true;
    inner().wake();
  }

 protected:
  void read_impl(const Transfer& transfer) override {
    note(transfer);
    inner().read(transfer);
  }
  void write_impl(const Transfer& transfer) override {
    note(transfer);
    inner().write(transfer);
  }

  // The first that is due may be reaped early by nothing but the inner device's clock: it is asked
  // to wait to the millisecond, and the rate still holds, since turns do not depend on when one
  // looks.
  void reap_impl(std::vector<Completion>& out, Wait wait, Duration at_most) override {
    take_inner(Wait::no, {});
    // That look may have used up a wake(), which is to end the wait. A wait too short does no harm.
    if (release(out) || wait == Wait::no || woken_.exchange(false)) return;
    Duration longest = at_most;
    if (!held_.empty()) {
      const auto left = std::chrono::ceil<Duration>(held_.begin()->first - throttle_.now());
      longest = std::min(longest, std::max(left, Duration{1}));
    }
    take_inner(Wait::yes, longest);
    release(out);
  }

 private:
  using TimePoint = Throttle::Clock::time_point;

  // Transfers with one tag end in any order; they are of one size then, or it does not matter whose
  // turn is whose.
  void note(const Transfer& transfer) {
    const auto now = throttle_.now();
    const double seconds =
        static_cast<double>(transfer.bytes) / static_cast<double>(throttle_.bytes_per_s);
    link_free_ = std::max(link_free_, now) + std::chrono::duration_cast<Throttle::Clock::duration>(
                                                 std::chrono::duration<double>(seconds));
    due_.emplace(transfer.tag, link_free_ + throttle_.latency);
  }

  void take_inner(Wait wait, Duration at_most) {
    reaped_.clear();
    inner().reap(reaped_, wait, at_most);
    for (Completion& completion : reaped_) {
      TimePoint due{};  // of a sync
      if (const auto known = due_.find(completion.tag); known != due_.end()) {
        due = known->second;
        due_.erase(known);
      }
      held_.emplace(due, std::move(completion));
    }
  }

  bool release(std::vector<Completion>& out) {
    const auto end = held_.upper_bound(throttle_.now());
    const bool any = end != held_.begin();
    for (auto at = held_.begin(); at != end; ++at) out.push_back(std::move(at->second));
    held_.erase(held_.begin(), end);
    return any;
  }

  const Throttle throttle_;
  std::atomic<bool> woken_{false};
  TimePoint link_free_{};
  std::multimap<std::uint64_t, TimePoint> due_;  // by tag
  std::multimap<TimePoint, Completion> held_;
  std::vector<Completion> reaped_;
};

Result<std::uint64_t> number_of(const char* variable) {
  const char* set = std::getenv(variable);
  const std::string text = set == nullptr ? "" : set;
  std::uint64_t value = 0;
  if (text.empty()) return value;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc{} || read.ptr != end || value == 0) {
    return make_error(Errc::invalid,
                      std::string(variable) + "=" + text + ": expected a number from 1");
  }
  return value;
}

}  // namespace

std::unique_ptr<BlockDevice> make_throttled_device(std::unique_ptr<BlockDevice> inner,
                                                   const Throttle& throttle) {
  return std::make_unique<ThrottledDevice>(std::move(inner), throttle);
}

Result<std::optional<Throttle>> throttle_from_environment() {
  const auto rate = number_of("KVTIER_DISK_BYTES_PER_S");
  if (!rate) return rate.error();
  const auto latency = number_of("KVTIER_DISK_LATENCY_US");
  if (!latency) return latency.error();
  if (*rate == 0) return std::optional<Throttle>{};
  return std::optional<Throttle>(
      Throttle{.bytes_per_s = *rate, .latency = std::chrono::microseconds(*latency)});
}

}  // namespace kvtier::storage
