#include "daemon/peers/rights.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/base/log2_buckets.h"
#include "daemon/limits.h"
#include "kvtier/drop_reason.h"

namespace kvtier::daemon {
namespace {

using Message = wire::Message;

// Counts a message's lists against what its frame can hold. Elements of structs and pointers take
// a word at the least: one without any is of no client that ever was.
class Lists {
 public:
  explicit Lists(std::size_t frame_bytes) : left_(frame_bytes) {}

  // A list that is charged for, of at most so many elements of so many bytes.
  void count(std::size_t elements, std::size_t most, std::size_t bytes = 8) {
    charged_ += elements;
    bound(elements, most, bytes);
  }
  // One that is so short that the message's own cost covers it.
  void bound(std::size_t elements, std::size_t most, std::size_t bytes = 8) {
    if (elements > most || elements > left_ / bytes) {
      good_ = false;
      left_ = 0;
    } else {
      left_ -= elements * bytes;
    }
  }
  // Slots asked for, not sent: nothing of the frame.
  void ask(std::size_t elements) { charged_ += elements; }
  bool good() const noexcept { return good_; }
  double charged() const noexcept { return static_cast<double>(charged_); }

 private:
  std::size_t left_;
  std::size_t charged_ = 0;
  bool good_ = true;
};

void lists_of_commit(Message::Reader m, Lists& lists) {
  const auto blocks = m.getCommit().getBlocks();
  lists.count(blocks.size(), wire::kCommitBlocksMax);
  for (unsigned i = 0; lists.good() && i < blocks.size(); ++i)
    lists.bound(blocks[i].getSlots().size(), kTiers);
}

void lists_of_report(Message::Reader m, Lists& lists) {
  const auto report = m.getReport();
  const auto loads = report.getLoads();
  lists.count(report.getBadKeys().size(), limits::kBadKeysMax);
  lists.bound(report.getMissed().size(), limits::kNamespacesPerSessionMax);
  lists.bound(report.getDropped().size(), kDropReasons);
  lists.bound(loads.size(), kTiersWithRemote);
  for (unsigned i = 0; lists.good() && i < loads.size(); ++i)
    lists.bound(loads[i].getBuckets().size(), kLog2Buckets + 1);
  lists.bound(report.getWriteBacks().getBuckets().size(), kLog2Buckets + 1);
}

struct Row {
  Message::Which message;
  const char* name;
  MessageRule rule;
  void (*lists)(Message::Reader, Lists&) = [](Message::Reader, Lists&) {};
};

// A cost of 1 is a microsecond or two of the control thread. One far above is of what walks over
// many blocks, or waits for a device.
const std::array kRows{
    Row{Message::HELLO,
        "hello",
        {Right::read, 20, 1.0 / 16},
        [](Message::Reader m, Lists& lists) {
          lists.count(m.getHello().getExtents().size(), limits::kExtentsMax, 4);
        }},
    Row{Message::OPEN_NAMESPACE, "openNamespace", {Right::read, 10}},
    Row{Message::LEASE,
        "lease",
        {Right::read, 1, 1.0 / 64},
        [](Message::Reader m, Lists& lists) {
          const std::size_t bytes = m.getLease().getKeys().size();
          lists.count(bytes / sizeof(Key), wire::kLeaseBlocksMax, sizeof(Key));
        }},
    // The remote tier is asked for each key.
    Row{Message::LOOK_UP,
        "lookUp",
        {Right::read, 4, 1.0 / 16},
        [](Message::Reader m, Lists& lists) {
          const std::size_t bytes = m.getLookUp().getKeys().size();
          lists.count(bytes / sizeof(Key), wire::kLeaseBlocksMax, sizeof(Key));
        }},
    // What is more than prefetch needs the right to write: ClientRequests looks at the kind.
    Row{Message::HINT,
        "hint",
        {Right::read, 1, 1.0 / 16, false},
        [](Message::Reader m, Lists& lists) {
          const std::size_t bytes = m.getHint().getKeys().size();
          lists.count(bytes / sizeof(Key), wire::kHintBlocksMax, sizeof(Key));
        }},
    Row{Message::RELEASE,
        "release",
        {Right::read, 0, 1, false},
        [](Message::Reader m, Lists& lists) {
          lists.count(m.getRelease().size(), limits::kReleasesMax);
        }},
    Row{Message::RELEASE_PARTLY,
        "releasePartly",
        {Right::read, 0, 1, false},
        [](Message::Reader m, Lists& lists) {
          lists.count(m.getReleasePartly().size(), limits::kReleasesMax);
        }},
    Row{Message::RESERVE,
        "reserve",
        {Right::write, 10, 1.0 / 16},
        [](Message::Reader m, Lists& lists) {
          lists.ask(std::min(m.getReserve().getCount(), wire::kReserveMax));
        }},
    Row{Message::COMMIT, "commit", {Right::write, 1, 1.0 / 4}, lists_of_commit},
    Row{Message::ABANDON,
        "abandon",
        {Right::write, 1, 1.0 / 4, false},
        [](Message::Reader m, Lists& lists) {
          lists.count(m.getAbandon().size(), wire::kReserveMax);
        }},
    Row{Message::RETURNED, "returned", {Right::write, 1, 0, false}},
    Row{Message::LET_GO, "letGo", {Right::read, 1, 0, false}},
    // Each bad key may have a whole record read.
    Row{Message::REPORT, "report", {Right::read, 1, 100, false}, lists_of_report},
    Row{Message::FLUSH, "flush", {Right::write, 100}},
    Row{Message::STATUS, "status", {Right::read, 100}},
    Row{Message::LIST, "list", {Right::read, 1000}},
    Row{Message::DROP, "drop", {Right::admin, 1}},
    Row{Message::SCRUB, "scrub", {Right::admin, 1}},
    Row{Message::SET_QUOTA, "setQuota", {Right::admin, 1}},
    Row{Message::INSPECT, "inspect", {Right::admin, 1}},
    Row{Message::PIN, "pin", {Right::admin, 1}},
    Row{Message::UNPIN, "unpin", {Right::admin, 1}},
    Row{Message::PUSH, "push", {Right::admin, 1}},
    Row{Message::INVALIDATE, "invalidate", {Right::admin, 1}},
    Row{Message::SESSIONS, "sessions", {Right::admin, 1}},
};

const Row* row_of(Message::Which message) noexcept {
  for (const Row& row : kRows) {
    if (row.message == message) return &row;
  }
  return nullptr;
}

}  // namespace

MessageRule rule_of(Message::Which message) noexcept {
  const Row* row = row_of(message);
  return row == nullptr ? MessageRule{} : row->rule;
}

Result<double> cost_of(Message::Reader message, std::size_t frame_bytes) {
  const Row* row = row_of(message.which());
  if (row == nullptr) return MessageRule{}.cost;
  Lists lists(frame_bytes);
  row->lists(message, lists);
  if (!lists.good()) {
    return make_error(Errc::malformed, std::string("request: ") + row->name +
                                           " with more elements in a list than there may be, or "
                                           "than its frame can hold");
  }
  return row->rule.cost + row->rule.each * lists.charged();
}

const char* name_of(Message::Which message) noexcept {
  const Row* row = row_of(message);
  return row == nullptr ? "unknown" : row->name;
}

}  // namespace kvtier::daemon
