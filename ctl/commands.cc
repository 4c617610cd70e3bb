#include "ctl/commands.h"

#include <algorithm>
#include <thread>

#include "core/wire/sync_request.h"

namespace kvtier::ctl {
namespace {

using Fill = std::function<void(wire::Message::Builder)>;
// Returns false for an answer of the wrong kind.
using Take = std::function<bool(wire::Message::Reader)>;

// A connection for one command.
class Asker {
 public:
  static Result<Asker> connect(const Target& target) {
    auto session =
        session::SyncSession::connect(target.socket, "kvtierctl", Clock::now() + target.timeout);
    if (!session) return session.error();
    return Result<Asker>(boost::system::in_place_value, target, std::move(*session));
  }
  Asker(const Target& target, session::SyncSession session)
      : target_(target), session_(std::move(session)) {}

  Result<void> ask(const Fill& fill, const Take& take) {
    bool taken = false;
    const auto use = [&](wire::Message::Reader answer) { taken = take(answer); };
    if (auto good = session_.request(fill, use, Clock::now() + target_.timeout); !good) return good;
    if (taken) return {};
    return make_error(Errc::malformed,
                      "the daemon at " + target_.socket + " answered something else");
  }

 private:
  Target target_;
  session::SyncSession session_;
};

Result<Json> ask(const Target& target, const Fill& fill,
                 const std::function<bool(wire::Message::Reader, Json&)>& take) {
  auto asker = Asker::connect(target);
  if (!asker) return asker.error();
  Json json = Json::object();
  const auto asked = asker->ask(fill, [&](wire::Message::Reader m) { return take(m, json); });
  if (!asked) return asked.error();
  return Result<Json>(boost::system::in_place_value, std::move(json));
}

template <class Digest>
capnp::Data::Reader data(const std::optional<Digest>& digest) {
  if (!digest) return {};
  return {reinterpret_cast<const kj::byte*>(digest->bytes.data()), digest->bytes.size()};
}

void fill_filter(wire::NamespaceFilter::Builder out, const Filter& filter) {
  out.setId(data(filter.ns));
  out.setModel(filter.model);
  out.setRevisionRule(static_cast<std::uint8_t>(filter.rule));
  out.setRevision(filter.revision);
}

void fill_selection(wire::Selection::Builder out, const Selection& selection) {
  fill_filter(out.initNamespaces(), selection.in);
  out.setKey(data(selection.key));
  out.setAround(static_cast<std::uint8_t>(selection.around));
}

bool comes_before(const Json& a, const Json& b, SortBy by) {
  switch (by) {
    case SortBy::index:
      return std::pair(a["namespace"], a["block_index"]) <
             std::pair(b["namespace"], b["block_index"]);
    case SortBy::access:
      return a["last_access"] > b["last_access"];
    case SortBy::size:
      return a["record_bytes"] > b["record_bytes"];
    default:
      return a["key"] < b["key"];
  }
}

// Keeps the first `most` in the order asked for.
void sort_blocks(Json& blocks, SortBy by, std::uint64_t most) {
  auto& all = blocks.get_ref<Json::array_t&>();
  const auto kept =
      all.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(most, all.size()));
  std::ranges::partial_sort(all, kept,
                            [&](const Json& a, const Json& b) { return comes_before(a, b, by); });
  all.erase(kept, all.end());
}

void sort_namespaces(Json& namespaces) {
  const auto bytes = [](const Json& ns) {
    std::uint64_t total = 0;
    for (const Json& in_tier : ns["bytes"]) total += in_tier.get<std::uint64_t>();
    return total;
  };
  std::ranges::stable_sort(namespaces.get_ref<Json::array_t&>(), std::ranges::greater{}, bytes);
}

struct Cursors {
  std::uint32_t ns = 0, block = 0;
};

Result<Cursors> fetch_piece(Asker& asker, const ListOptions& options, bool namespaces,
                            std::uint64_t blocks, Cursors from, Json& json) {
  Cursors next;
  const auto asked = asker.ask(
      [&](wire::Message::Builder m) {
        auto list = m.initList();
        fill_filter(list.initNamespaces(), options.in);
        list.setTiers(options.tiers.bits);
        list.setNamespacesMax(namespaces ? wire::kListNamespacesMax : 0);
        list.setFromNamespace(from.ns);
        list.setBlocksMax(
            static_cast<std::uint32_t>(std::min<std::uint64_t>(blocks, wire::kListBlocksMax)));
        list.setFromBlock(from.block);
      },
      [&](wire::Message::Reader m) {
        if (!m.isListReply()) return false;
        append(json, m.getListReply());
        next = {m.getListReply().getNextNamespace(), m.getListReply().getNextBlock()};
        return true;
      });
  if (!asked) return asked.error();
  return next;
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

Result<Json> fetch_sessions(const Target& target) {
  return ask(
      target, [](wire::Message::Builder m) { m.setSessions(); },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isSessionsReply()) return false;
        json["sessions"] = Json::array();
        for (const auto session : m.getSessionsReply())
          json["sessions"].push_back(to_json(session));
        return true;
      });
}

Result<Json> fetch_list(const Target& target, const ListOptions& options) {
  auto asker = Asker::connect(target);
  if (!asker) return asker.error();
  Json json;
  json["namespaces"] = Json::array();
  json["blocks"] = Json::array();
  // The first of an order may be any of them.
  const std::uint64_t wanted =
      options.sort == SortBy::none || options.blocks == 0 ? options.blocks : ~std::uint64_t{0};
  const auto left = [&] { return wanted - std::min<std::uint64_t>(wanted, json["blocks"].size()); };
  Cursors at;
  do {
    const auto next = fetch_piece(*asker, options, true, 0, at, json);
    if (!next) return next.error();
    at = *next;
  } while (at.ns != 0);
  sort_namespaces(json["namespaces"]);
  at = {};
  while (left() > 0) {
    const auto next = fetch_piece(*asker, options, false, left(), at, json);
    if (!next) return next.error();
    at = *next;
    if (at.block == 0) break;
  }
  json["more_blocks"] = at.block != 0 && left() == 0;
  if (options.sort != SortBy::none) {
    json["more_blocks"] = json["blocks"].size() > options.blocks;
    sort_blocks(json["blocks"], options.sort, options.blocks);
  }
  return Result<Json>(boost::system::in_place_value, std::move(json));
}

Result<Json> inspect(const Target& target, const Key& key, bool verify) {
  return ask(
      target,
      [&](wire::Message::Builder m) {
        auto request = m.initInspect();
        request.setKey(data(std::optional(key)));
        request.setVerify(verify);
      },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isInspected()) return false;
        json = to_json(m.getInspected());
        return true;
      });
}

Result<Json> drop(const Target& target, const DropOptions& options) {
  return ask(
      target,
      [&](wire::Message::Builder m) {
        auto request = m.initDrop();
        fill_selection(request.initSelection(), options.what);
        request.setTiers(options.tiers.bits);
        request.setForce(options.force);
      },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isDropped()) return false;
        json = to_json(m.getDropped());
        return true;
      });
}

Result<Json> pin(const Target& target, const PinOptions& options) {
  return ask(
      target,
      [&](wire::Message::Builder m) {
        auto request = m.initPin();
        fill_selection(request.initSelection(), options.what);
        request.setTiers(options.tiers.bits);
        request.setSeconds(static_cast<std::uint32_t>(options.lifetime.count()));
      },
      [&](wire::Message::Reader m, Json& json) {
        if (!m.isPinned()) return false;
        json["placements_pinned"] = m.getPinned().getBlocks();
        json["bytes_pinned"] = m.getPinned().getBytes();
        json["placements_refused"] = m.getPinned().getNoRoom();
        json["lifetime_s"] = options.lifetime.count();
        return true;
      });
}

Result<Json> unpin(const Target& target, const Selection& what, TierSet tiers) {
  return ask(
      target,
      [&](wire::Message::Builder m) {
        auto request = m.initUnpin();
        fill_selection(request.initSelection(), what);
        request.setTiers(tiers.bits);
      },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isUnpinned()) return false;
        json["blocks_unpinned"] = m.getUnpinned();
        return true;
      });
}

Result<Json> push(const Target& target, const Selection& what, std::chrono::seconds used_within) {
  return ask(
      target,
      [&](wire::Message::Builder m) {
        auto request = m.initPush();
        fill_selection(request.initSelection(), what);
        request.setUsedWithinS(static_cast<std::uint32_t>(used_within.count()));
      },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isPushed()) return false;
        json["blocks_remote"] = m.getPushed().getBlocks();
        json["blocks_left"] = m.getPushed().getLeft();
        return true;
      });
}

Result<Json> invalidate(const Target& target, const Filter& filter) {
  return ask(
      target, [&](wire::Message::Builder m) { fill_filter(m.initInvalidate(), filter); },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isInvalidated()) return false;
        json = to_json(m.getInvalidated());
        return true;
      });
}

Result<Json> flush(const Target& target) {
  return ask(
      target, [](wire::Message::Builder m) { m.setFlush(); },
      [](wire::Message::Reader m, Json& json) {
        json["flushed"] = m.isDone();
        json["left_out_blocks"] = m.getLeftOut();
        json["left_out_in_memory_blocks"] = m.getLeftOutInMemory();
        return m.isDone();
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

Result<Json> fetch_quotas(const Target& target) {
  return ask(
      target, [](wire::Message::Builder m) { m.setStatus(); },
      [](wire::Message::Reader m, Json& json) {
        if (!m.isStatusReply()) return false;
        json["tenants"] = Json::array();
        for (const auto tenant : m.getStatusReply().getTenants())
          json["tenants"].push_back(to_json(tenant));
        return true;
      });
}

// What is guaranteed stays as it is.
Result<Json> set_quotas(const Target& target, const std::string& tenant,
                        const std::vector<QuotaChange>& changes) {
  const auto before = fetch_quotas(target);
  if (!before) return before.error();
  for (const QuotaChange& change : changes) {
    std::uint64_t guaranteed = 0;
    for (const Json& known : (*before)["tenants"]) {
      if (known["tenant"] == tenant)
        guaranteed = known["guaranteed_bytes"].value(name(change.tier), std::uint64_t{0});
    }
    const auto set = ask(
        target,
        [&](wire::Message::Builder m) {
          auto request = m.initSetQuota();
          request.setTenant(tenant);
          request.setTier(static_cast<std::uint8_t>(change.tier));
          request.setQuotaBytes(change.bytes == 0 ? ~std::uint64_t{0} : change.bytes);
          request.setGuaranteedBytes(guaranteed);
        },
        [](wire::Message::Reader m, Json&) { return m.isDone(); });
    if (!set) return set.error();
  }
  return fetch_quotas(target);
}

}  // namespace kvtier::ctl
