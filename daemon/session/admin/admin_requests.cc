#include "daemon/session/admin/admin_requests.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/limits.h"
#include "daemon/peers/rights.h"
#include "daemon/session/wire_values.h"

namespace kvtier::daemon {
namespace {

using std::chrono::steady_clock;

constexpr TierSet kAllTierSet{(1U << kTiersWithRemote) - 1};

TierSet tiers_from(std::uint8_t bits) {
  const auto known = static_cast<std::uint8_t>(bits & kAllTierSet.bits);
  return known == 0 ? kAllTierSet : TierSet{known};
}

Result<NamespaceFilter> filter_from(wire::NamespaceFilter::Reader request) {
  NamespaceFilter filter;
  if (request.getId().size() != 0) {
    filter.id = digest_from<NamespaceId>(request.getId());
    if (!filter.id) return malformed("a namespace id of the wrong size");
  }
  if (request.getRevisionRule() > static_cast<std::uint8_t>(NamespaceFilter::Revision::is_not))
    return malformed("a rule for revisions that does not exist");
  filter.model = request.getModel();
  filter.revision_rule = static_cast<NamespaceFilter::Revision>(request.getRevisionRule());
  filter.revision = request.getRevision();
  return filter;
}

Result<Selection> selection_from(wire::Selection::Reader request) {
  Selection selection;
  auto filter = filter_from(request.getNamespaces());
  if (!filter) return filter.error();
  selection.in = std::move(*filter);
  if (request.getKey().size() != 0) {
    selection.key = digest_from<Key>(request.getKey());
    if (!selection.key) return malformed("a key of the wrong size");
  }
  if (request.getAround() > static_cast<std::uint8_t>(Selection::Around::descendants))
    return malformed("blocks around a key in a way that does not exist");
  selection.around = static_cast<Selection::Around>(request.getAround());
  return selection;
}

void fill_removed(wire::Removed::Builder out, const AdminJobs::Removed& removed) {
  out.setBlocks(removed.blocks);
  out.setInUse(removed.in_use);
  out.setPinned(removed.pinned);
}

void fill_invalidated(wire::Invalidated::Builder out, const AdminJobs::Invalidated& result) {
  auto ids = out.initNamespaces(static_cast<unsigned>(result.namespaces.size()));
  for (unsigned i = 0; i < ids.size(); ++i) ids.set(i, data_of(result.namespaces[i]));
  fill_removed(out.initRemoved(), result.removed);
  out.setSessions(result.sessions);
  auto disks = out.initDisksOffline(static_cast<unsigned>(result.disks_offline.size()));
  for (unsigned i = 0; i < disks.size(); ++i) disks.set(i, result.disks_offline[i]);
}

}  // namespace

bool AdminRequests::handles(wire::Message::Which message) noexcept {
  return message == wire::Message::LIST || rule_of(message).right == Right::admin;
}

// For a request that is answered in a later turn, when this session may have ended.
template <class T>
std::function<void(const T&)> AdminRequests::answer(std::uint64_t id,
                                                    std::function<void(Builder, const T&)> fill) {
  return [weak = connection_.weak_from_this(), id, fill = std::move(fill)](const T& value) {
    if (const auto self = weak.lock()) self->reply(id, [&](Builder root) { fill(root, value); });
  };
}

Result<void> AdminRequests::handle(wire::Message::Reader message) {
  const std::uint64_t id = message.getId();
  switch (message.which()) {
    case wire::Message::LIST:
      return list(id, message.getList());
    case wire::Message::INSPECT:
      return inspection_.inspect(id, message.getInspect());
    case wire::Message::DROP:
      return drop(id, message.getDrop());
    case wire::Message::PIN:
      return pin(id, message.getPin());
    case wire::Message::UNPIN:
      return unpin(id, message.getUnpin());
    case wire::Message::PUSH:
      return push(id, message.getPush());
    case wire::Message::INVALIDATE:
      return invalidate(id, message.getInvalidate());
    case wire::Message::SET_QUOTA:
      return set_quota(id, message.getSetQuota());
    case wire::Message::SCRUB:
      connection_.reply(id, [&](Builder root) {
        context_.ports.scrub(message.getScrub().getStart(), root.initScrubReply());
      });
      return {};
    case wire::Message::SESSIONS:
      connection_.reply(id, context_.ports.fill_sessions);
      return {};
    default:
      return malformed("not something an administrator may send");
  }
}

Result<void> AdminRequests::drop(std::uint64_t id, wire::DropRequest::Reader request) {
  auto selection = selection_from(request.getSelection());
  if (!selection) return selection.error();
  const auto fill = [](Builder root, const AdminJobs::Removed& removed) {
    fill_removed(root.initDropped(), removed);
  };
  const auto begun = context_.admin.drop(std::move(*selection), tiers_from(request.getTiers()),
                                         request.getForce(), answer<AdminJobs::Removed>(id, fill));
  if (!begun) connection_.reply_error(id, begun.error());
  return {};
}

Result<void> AdminRequests::pin(std::uint64_t id, wire::PinRequest::Reader request) {
  auto selection = selection_from(request.getSelection());
  if (!selection) return selection.error();
  if (request.getSeconds() == 0 || request.getSeconds() > limits::kPinSecondsMax) {
    connection_.reply_error(id,
                            make_error(Errc::invalid, "a pin lasts from 1 to " +
                                                          std::to_string(limits::kPinSecondsMax) +
                                                          " seconds (30 days)"));
    return {};
  }
  const auto fill = [](Builder root, const AdminJobs::Pinned& pinned) {
    auto out = root.initPinned();
    out.setBlocks(pinned.blocks);
    out.setBytes(pinned.bytes);
    out.setNoRoom(pinned.no_room);
  };
  const auto begun =
      context_.admin.pin(std::move(*selection), tiers_from(request.getTiers()),
                         steady_clock::now() + std::chrono::seconds(request.getSeconds()),
                         answer<AdminJobs::Pinned>(id, fill));
  if (!begun) connection_.reply_error(id, begun.error());
  return {};
}

Result<void> AdminRequests::unpin(std::uint64_t id, wire::UnpinRequest::Reader request) {
  auto selection = selection_from(request.getSelection());
  if (!selection) return selection.error();
  const auto fill = [](Builder root, const std::uint64_t& blocks) { root.setUnpinned(blocks); };
  const auto begun = context_.admin.unpin(std::move(*selection), tiers_from(request.getTiers()),
                                          answer<std::uint64_t>(id, fill));
  if (!begun) connection_.reply_error(id, begun.error());
  return {};
}

Result<void> AdminRequests::push(std::uint64_t id, wire::PushRequest::Reader request) {
  auto selection = selection_from(request.getSelection());
  if (!selection) return selection.error();
  const auto fill = [](Builder root, const AdminJobs::Pushed& pushed) {
    auto out = root.initPushed();
    out.setBlocks(pushed.blocks);
    out.setLeft(pushed.left);
  };
  const auto begun = context_.admin.push(std::move(*selection), request.getUsedWithinS(),
                                         answer<AdminJobs::Pushed>(id, fill));
  if (!begun) connection_.reply_error(id, begun.error());
  return {};
}

Result<void> AdminRequests::invalidate(std::uint64_t id, wire::NamespaceFilter::Reader request) {
  auto filter = filter_from(request);
  if (!filter) return filter.error();
  if (filter->is_everything()) {
    connection_.reply_error(
        id, make_error(Errc::invalid, "name the model, or a namespace, to invalidate"));
    return {};
  }
  const auto done = [weak = connection_.weak_from_this(),
                     id](const AdminJobs::Invalidated& result) {
    const auto self = weak.lock();
    if (!self) return;
    if (!result.flushed) return self->reply_error(id, result.flushed.error());
    self->reply(id, [&](Builder root) { fill_invalidated(root.initInvalidated(), result); });
  };
  const auto begun = context_.admin.invalidate(std::move(*filter), done);
  if (!begun) connection_.reply_error(id, begun.error());
  return {};
}

// At most kWalkStep numbers a reply, so that nobody waits long however many blocks there are.
Result<void> AdminRequests::list(std::uint64_t id, wire::ListRequest::Reader request) {
  const auto filter = filter_from(request.getNamespaces());
  if (!filter) return filter.error();
  const Catalogue& catalogue = context_.cache.catalogue();
  const Namespaces& known = catalogue.namespaces();
  std::vector<char> wanted(known.size());
  for (std::uint16_t ns = 0; ns < known.size(); ++ns) {
    // One that was invalidated is shown until the last of it has gone.
    const bool gone = known[ns].vacant || (known[ns].closed && known[ns].unused());
    wanted[ns] = !gone && visible(ns) && filter->matches(known[ns]);
  }
  if (!filter->is_everything() && std::ranges::find(wanted, 1) == wanted.end()) {
    connection_.reply_error(id, make_error(Errc::not_found, "no namespace is known that matches"));
    return {};
  }
  const TierSet tiers = tiers_from(request.getTiers());
  const auto blocks_max = std::min(request.getBlocksMax(), wire::kListBlocksMax);
  const auto namespaces_max = std::min(request.getNamespacesMax(), wire::kListNamespacesMax);
  std::vector<BlockId> blocks;
  std::uint32_t number = blocks_max == 0 ? catalogue.numbers_used() : request.getFromBlock();
  for (std::uint32_t passed = 0; number < catalogue.numbers_used() && blocks.size() < blocks_max &&
                                 passed < limits::kWalkStep;
       ++passed) {
    const BlockId block(number++);
    const Block& at = catalogue.block(block);
    if ((at.tiers.bits & tiers.bits) != 0 && wanted[at.ns]) blocks.push_back(block);
  }
  std::vector<std::uint16_t> namespaces;
  std::uint32_t ns = namespaces_max == 0 ? known.size() : request.getFromNamespace();
  for (; ns < known.size() && namespaces.size() < namespaces_max; ++ns) {
    if (wanted[ns]) namespaces.push_back(static_cast<std::uint16_t>(ns));
  }
  connection_.reply(id, [&](Builder root) {
    auto list = root.initListReply();
    auto out = list.initNamespaces(static_cast<unsigned>(namespaces.size()));
    for (unsigned i = 0; i < out.size(); ++i) inspection_.fill_namespace(out[i], namespaces[i]);
    auto found = list.initBlocks(static_cast<unsigned>(blocks.size()));
    for (unsigned i = 0; i < found.size(); ++i) inspection_.fill_block(found[i], blocks[i]);
    if (ns < known.size()) list.setNextNamespace(ns);
    if (number < catalogue.numbers_used()) list.setNextBlock(number);
  });
  return {};
}

Result<void> AdminRequests::set_quota(std::uint64_t id, wire::QuotaRequest::Reader request) {
  const std::string name_of_tenant = request.getTenant().cStr();
  const auto tenant = context_.cache.catalogue().tenants().find(name_of_tenant);
  if (!tenant) {
    connection_.reply_error(
        id, make_error(Errc::not_found,
                       "no tenant '" + name_of_tenant + "': `kvtierctl status` lists them"));
    return {};
  }
  if (request.getTier() >= kTiers) {
    connection_.reply_error(id, make_error(Errc::invalid, "no such tier"));
    return {};
  }
  const Tier tier = static_cast<Tier>(request.getTier());
  const TenantLimits wanted{request.getQuotaBytes(), request.getGuaranteedBytes()};
  if (auto good = context_.cache.set_limits(*tenant, tier, wanted); !good) {
    connection_.reply_error(id, good.error());
    return {};
  }
  spdlog::info("tenant '{}': quota of the {} tier is {} bytes, {} guaranteed", name_of_tenant,
               name(tier), wanted.quota, wanted.guaranteed);
  connection_.reply(id, [](Builder root) { root.setDone(); });
  return {};
}

// Whether the peer is shown this namespace: it may use its tenant, or is an administrator.
bool AdminRequests::visible(std::uint16_t ns) const {
  const TenantId tenant = context_.cache.catalogue().namespaces()[ns].tenant;
  const Peer& peer = connection_.peer();
  return context_.access.is_admin(peer) || context_.access.may_use(tenant, peer);
}

}  // namespace kvtier::daemon
