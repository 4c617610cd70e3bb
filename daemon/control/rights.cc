#include "daemon/control/rights.h"

#include <array>

namespace kvtier::daemon {
namespace {

using Message = wire::Message;

struct Row {
  Message::Which message;
  const char* name;
  MessageRule rule;
};

// A cost above 1 is of what walks over many blocks, or waits for a device.
constexpr std::array kRows{
    Row{Message::HELLO, "hello", {Right::read, 1}},
    Row{Message::OPEN_NAMESPACE, "openNamespace", {Right::read, 10}},
    Row{Message::LEASE, "lease", {Right::read, 1}},
    Row{Message::RELEASE, "release", {Right::read, 1, false}},
    Row{Message::RELEASE_PARTLY, "releasePartly", {Right::read, 1, false}},
    Row{Message::RESERVE, "reserve", {Right::write, 10}},
    Row{Message::COMMIT, "commit", {Right::write, 1}},
    Row{Message::ABANDON, "abandon", {Right::write, 1, false}},
    Row{Message::RETURNED, "returned", {Right::write, 1, false}},
    Row{Message::LET_GO, "letGo", {Right::read, 1, false}},
    Row{Message::REPORT, "report", {Right::read, 1, false}},
    Row{Message::FLUSH, "flush", {Right::write, 100}},
    Row{Message::STATUS, "status", {Right::read, 100}},
    Row{Message::LIST, "list", {Right::read, 1000}},
    Row{Message::DROP, "drop", {Right::admin, 1}},
    Row{Message::SCRUB, "scrub", {Right::admin, 1}},
    Row{Message::SET_QUOTA, "setQuota", {Right::admin, 1}},
    Row{Message::INSPECT, "inspect", {Right::admin, 1}},
    Row{Message::PIN, "pin", {Right::admin, 1}},
    Row{Message::UNPIN, "unpin", {Right::admin, 1}},
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

const char* name_of(Message::Which message) noexcept {
  const Row* row = row_of(message);
  return row == nullptr ? "unknown" : row->name;
}

}  // namespace kvtier::daemon
