#include "client/ctl/commands.h"

#include <thread>

#include "client/session/sync_request.h"

namespace kvtier::ctl {
namespace {

// `take` returns false for an answer of the wrong kind.
Result<Json> ask(const Target& target, const std::function<void(wire::Message::Builder)>& fill,
                 const std::function<bool(wire::Message::Reader, Json&)>& take) {
  const Deadline deadline = Clock::now() + target.timeout;
  auto session = session::SyncSession::connect(target.socket, "kvtierctl", deadline);
  if (!session) return session.error();
  Json json;
  bool taken = false;
  const auto use = [&](wire::Message::Reader answer) { taken = take(answer, json); };
  if (auto good = session->request(fill, use, deadline); !good) return good.error();
  if (!taken)
    return make_error(Errc::malformed,
                      "the daemon at " + target.socket + " answered something else");
  return Result<Json>(boost::system::in_place_value, std::move(json));
}

capnp::Data::Reader data(const std::optional<NamespaceId>& ns) {
  if (!ns) return {};
  return {reinterpret_cast<const kj::byte*>(ns->bytes.data()), ns->bytes.size()};
}

}  // namespace

Result<Json> fetch_status(const Target& target) {
  return ask(
      target, [](wire::Message::Builder m) { m.setStatus(); },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isStatusReply()) return false;
        json = to_json(m.getStatusReply());
        return true;
      });
}

Result<Json> fetch_list(const Target& target, const ListOptions& options) {
  return ask(
      target,
      [&](wire::Message::Builder m) {
        auto list = m.initList();
        list.setNs(data(options.ns));
        list.setLimit(options.blocks);
      },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isListReply()) return false;
        json = to_json(m.getListReply());
        return true;
      });
}

Result<Json> drop(const Target& target, const DropOptions& options) {
  return ask(
      target,
      [&](wire::Message::Builder m) {
        auto request = m.initDrop();
        request.setNs(data(options.ns));
        request.setTiers(options.tiers.bits);
      },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isDropped()) return false;
        json["blocks_dropped"] = m.getDropped();
        return true;
      });
}

Result<Json> scrub(const Target& target, const ScrubOptions& options) {
  const auto request = [&](bool start) {
    return ask(
        target, [&](wire::Message::Builder m) { m.initScrub().setStart(start); },
        [](wire::Message::Reader m, Json& json) {
          if (!m.isScrubReply()) return false;
          json = to_json(m.getScrubReply());
          return true;
        });
  };
  auto report = request(options.start);
  while (options.wait && report && (*report)["running"].get<bool>()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    report = request(false);
  }
  return report;
}

}  // namespace kvtier::ctl
