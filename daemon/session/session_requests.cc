#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "daemon/limits.h"
#include "daemon/peers/rights.h"
#include "daemon/session/session.h"

namespace kvtier::daemon {
namespace {

std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
  return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
}

// What session_admin.cc answers.
bool is_administration(wire::Message::Which message) noexcept {
  return message == wire::Message::LIST ||
         (rule_of(message).right == Right::admin && message != wire::Message::SET_QUOTA);
}

Error malformed(const std::string& what) {
  return make_error(Errc::malformed, "request: " + what);
}

// Copies `count` values of 16 or 4 bytes, which lie unaligned in the frame.
template <class Value>
std::vector<Value> values_of(capnp::Data::Reader data) {
  std::vector<Value> values(data.size() / sizeof(Value));
  // memcpy() wants places even for nothing.
  if (!values.empty()) std::memcpy(values.data(), data.begin(), values.size() * sizeof(Value));
  return values;
}

}  // namespace

Result<void> Session::handle(wire::Frame& frame) {
  Result<void> handled;
  const auto read = frame.read(
      [&](wire::Message::Reader message) { handled = dispatch(message, frame.bytes()); });
  if (!read) return read.error();
  return handled;
}

Result<void> Session::dispatch(wire::Message::Reader message, std::size_t frame_bytes) {
  const std::uint64_t id = message.getId();
  if (!greeted_ && !message.isHello()) return malformed("the first message must be hello");
  const MessageRule rule = rule_of(message.which());
  const auto cost = cost_of(message, frame_bytes);
  if (!cost) return cost.error();
  charge(*cost);
  if (auto good = authorized(message.which()); !good) {
    if (good.error().code == Errc::malformed) return good;
    ++context_.denied;
    warn("is refused: " + good.error().message);
    if (!rule.answered) return good;
    reply_error(id, good.error());
    return {};
  }
  if (is_administration(message.which())) return admin(message);
  switch (message.which()) {
    case wire::Message::HELLO:
      return on_hello(id, message.getHello());
    case wire::Message::OPEN_NAMESPACE:
      return on_open(id, message.getOpenNamespace());
    case wire::Message::LEASE:
      return on_lease(id, message.getLease());
    case wire::Message::RELEASE:
      for (const LeaseId lease : message.getRelease()) context_.cache.release(id_, lease);
      return {};
    case wire::Message::RELEASE_PARTLY:
      for (const auto release : message.getReleasePartly())
        context_.cache.release(id_, release.getLease(), release.getUsable());
      return {};
    case wire::Message::RESERVE:
      return on_reserve(id, message.getReserve());
    case wire::Message::COMMIT:
      return on_commit(id, message.getCommit());
    case wire::Message::ABANDON:
      for (const SlotName slot : message.getAbandon()) context_.cache.abandon(id_, slot);
      context_.lending.came_home();
      return {};
    case wire::Message::RETURNED:
      context_.lending.returned(id_, message.getReturned());
      return {};
    case wire::Message::REPORT:
      return on_report(message.getReport());
    case wire::Message::FLUSH:
      return on_flush(id);
    case wire::Message::STATUS:
      on_status(id);
      return {};
    case wire::Message::LET_GO:
      context_.cache.let_go(process_, client_);
      context_.lending.came_home();
      return {};
    case wire::Message::SET_QUOTA:
      return on_set_quota(id, message.getSetQuota());
    default:
      return malformed("not something a client may send");
  }
}

// Errors: malformed (nothing that a client may send), refused.
Result<void> Session::authorized(wire::Message::Which message) const {
  switch (rule_of(message).right) {
    case Right::none:
      return malformed("not something a client may send");
    case Right::read:
      return {};
    case Right::write:
      if (!read_only_) return {};
      return make_error(Errc::refused, std::string(name_of(message)) +
                                           ": this session is read-only; it asked for that, or "
                                           "its user is in [access] read_only_users or _groups");
    case Right::admin:
      if (context_.access.is_admin(peer_)) return {};
  }
  return make_error(Errc::refused, std::string(name_of(message)) +
                                       " needs an administrator: run it as root, as the daemon's "
                                       "user, or as a member of [access] admin_group");
}

void Session::on_status(std::uint64_t id) {
  reply(id, [&](Builder root) { context_.fill_status(peer_, root.initStatusReply()); });
}

Result<void> Session::on_set_quota(std::uint64_t id, wire::QuotaRequest::Reader request) {
  if (auto good = context_.set_quota(request); !good) {
    reply_error(id, good.error());
  } else {
    reply(id, [](Builder root) { root.setDone(); });
  }
  return {};
}

// Whether the peer is shown this namespace: it may use its tenant, or is an administrator.
bool Session::visible(std::uint16_t ns) const {
  const TenantId tenant = context_.cache.catalogue().namespaces()[ns].tenant;
  return context_.access.is_admin(peer_) || context_.access.may_use(tenant, peer_);
}

Result<void> Session::on_hello(std::uint64_t id, wire::Hello::Reader hello) {
  // Each welcome carries a descriptor, so a peer could otherwise have us hold any number of them.
  if (greeted_) return malformed("a second hello");
  if (hello.getVersion() != wire::kProtocolVersion) {
    reply_error(id,
                make_error(Errc::version, "protocol version " + std::to_string(hello.getVersion()) +
                                              " is not spoken here: this kvtierd speaks version " +
                                              std::to_string(wire::kProtocolVersion) +
                                              "; install matching kvtierd and libkvtier"));
    end("protocol version " + std::to_string(hello.getVersion()));
    return {};
  }
  if (hello.getGpu().size() != 0 && hello.getGpu().size() != sizeof(GpuUuid))
    return malformed("a GPU's UUID of the wrong size");
  name_ = std::string(hello.getName().cStr()).substr(0, 64);
  // It goes to logs and terminals.
  std::ranges::replace_if(
      name_, [](char c) { return c >= 0 && (c < 0x20 || c == 0x7F); }, '?');
  read_only_ = hello.getReadOnly() || context_.access.read_only(peer_);
  device_ = device_of_gpu(hello.getGpu());
  if (read_only_ && !context_.device_for_readers) device_ = kNoDevice;
  client_ = hello.getClient();
  answers_recalls_ = (hello.getFeatures() & wire::kAnswersRecalls) != 0;
  if (client_ != 0) context_.end_earlier(id_, process_, client_);
  if (auto good = recall_extents(hello); !good) return good;
  greeted_ = true;
  spdlog::info("session {}: {} (pid {}, uid {}, gid {}){}{}", id_, name_, peer_.pid, peer_.uid,
               peer_.gid, read_only_ ? ", read-only" : "",
               context_.access.is_admin(peer_) ? ", administrator" : "");
  lease_time_ = context_.lease_time;
  UniqueFd directory(::fcntl(context_.directory.fd(), F_DUPFD_CLOEXEC, 0));
  if (!directory) {
    return make_error(Errc::no_space,
                      "kvtierd has no file descriptor left for the directory: raise its limit of "
                      "open files");
  }
  reply(
      id,
      [&](Builder root) {
        auto welcome = root.initWelcome();
        welcome.setVersion(wire::kProtocolVersion);
        welcome.setFeatures(wire::kFeatures);
        welcome.setBootId({reinterpret_cast<const kj::byte*>(context_.boot_id.data()), 16});
        welcome.setLeaseMs(static_cast<std::uint32_t>(lease_time_.count()));
        welcome.setDirectoryBytes(context_.directory.bytes());
        welcome.setFrameBytesMax(wire::kFrameBytesMax);
        welcome.setDevice(static_cast<std::uint8_t>(device_));
        welcome.setReadOnly(read_only_);
        welcome.setLineage(
            {reinterpret_cast<const kj::byte*>(context_.lineage.data()), context_.lineage.size()});
        auto extents = welcome.initExtents(static_cast<unsigned>(known_extents_.size()));
        unsigned i = 0;
        for (const std::uint32_t extent : known_extents_) extents.set(i++, extent);
      },
      std::move(directory));
  return {};
}

// The extents that the client has from an earlier session and that are still the same.
Result<void> Session::recall_extents(wire::Hello::Reader hello) {
  if (hello.getLineage().size() == 0) return {};
  Lineage lineage;
  if (hello.getLineage().size() != lineage.size() ||
      hello.getExtents().size() > limits::kExtentsMax)
    return malformed("a lineage of the wrong size, or too many extents");
  std::memcpy(lineage.data(), hello.getLineage().begin(), lineage.size());
  // A mapping goes on to be what it is: one for reading alone is of no use to a writer.
  if (lineage != context_.lineage || hello.getExtentsReadOnly() != read_only_) return {};
  for (const std::uint32_t extent : hello.getExtents()) {
    const std::uint32_t device = extent >> limits::kExtentBits;
    const auto in = [&](Tier tier) {
      return context_.cache.memory(tier, device).extent(ExtentId(extent)) != nullptr;
    };
    if (device >= context_.cache.devices()) continue;
    if (in(Tier::host) || (device == device_ && in(Tier::device))) known_extents_.insert(extent);
  }
  return {};
}

std::uint32_t Session::device_of_gpu(capnp::Data::Reader uuid) const {
  if (uuid.size() == 0) return context_.device_without_gpu;
  GpuUuid wanted;
  std::memcpy(wanted.data(), uuid.begin(), wanted.size());
  const auto found = std::ranges::find(context_.gpus, wanted);
  if (found != context_.gpus.end())
    return static_cast<std::uint32_t>(found - context_.gpus.begin());
  if (!context_.gpus.empty()) {
    spdlog::info(
        "session {} ({}, pid {}) is on {}, where there is no device tier: see [device] gpus", id_,
        name_, process_.pid, to_string(wanted));
  }
  return kNoDevice;
}

Result<void> Session::on_open(std::uint64_t id, capnp::Data::Reader encoded) {
  if (namespaces_.size() == limits::kNamespacesPerSessionMax) {
    reply_error(id,
                make_error(Errc::no_space, "too many namespaces in one session (" +
                                               std::to_string(limits::kNamespacesPerSessionMax) +
                                               "): open some in another client"));
    return {};
  }
  // What is not understood gets its error below.
  if (const auto ns = decode_namespace(bytes_of(encoded))) {
    const Tenants& tenants = context_.cache.catalogue().tenants();
    const TenantId tenant = tenants.of_salt(ns->tenant);
    if (!context_.access.may_use(tenant, peer_)) {
      ++context_.denied;
      reply_error(id,
                  make_error(Errc::refused, "user " + std::to_string(peer_.uid) +
                                                " may not use the tenant '" + tenants[tenant].name +
                                                "': see the users and groups of its [[tenant]]"));
      return {};
    }
  }
  const auto handle = static_cast<std::uint32_t>(namespaces_.size());
  if (read_only_ && !context_.cache.knows_namespace(bytes_of(encoded))) {
    // Readers make none: this one finds nothing until somebody else has made it.
    if (const auto good = decode_namespace(bytes_of(encoded)); !good) {
      reply_error(id, good.error());
      return {};
    }
    namespaces_.push_back(kNotKnown);
    awaited_.emplace(handle, std::vector(bytes_of(encoded).begin(), bytes_of(encoded).end()));
  } else {
    const auto number = context_.cache.open_namespace(bytes_of(encoded), peer_.uid);
    if (!number) {
      reply_error(id, number.error());
      return {};
    }
    ++context_.cache.catalogue().namespaces()[*number].opened;
    namespaces_.push_back(*number);
  }
  reply(id, [&](Builder root) { root.setOpened(handle); });
  return {};
}

// kNotKnown: nobody has made it yet.
Result<std::uint16_t> Session::number_of(std::uint32_t handle) {
  if (handle >= namespaces_.size()) return malformed("a namespace that was not opened");
  if (const auto awaited = awaited_.find(handle); awaited != awaited_.end()) {
    if (!context_.cache.knows_namespace(awaited->second)) return kNotKnown;
    const auto number = context_.cache.open_namespace(awaited->second);
    if (!number) return kNotKnown;  // another that has its id
    ++context_.cache.catalogue().namespaces()[*number].opened;
    namespaces_[handle] = *number;
    awaited_.erase(awaited);
  }
  return namespaces_[handle];
}

Result<void> Session::on_lease(std::uint64_t id, wire::LeaseRequest::Reader request) {
  const auto ns = number_of(request.getNs());
  if (!ns) return ns.error();
  const auto keys = values_of<Key>(request.getKeys());
  if (request.getKeys().size() % sizeof(Key) != 0) return malformed("a lease of part of a key");
  if (request.getLookedUp() > limits::kLookedUpMax) return malformed("a prompt of too many blocks");
  BlockCache::Grant grant;
  if (*ns != kNotKnown) {
    grant = context_.cache.lease(id_, *ns, keys, device_, request.getLookedUp());
  } else {
    context_.cache.catalogue().namespaces().missed(
        std::max<std::uint64_t>(request.getLookedUp(), keys.size()));
  }
  for (const SlotName slot : grant.slots) introduce(slot);
  reply(id, [&](Builder root) {
    auto leased = root.initLeased();
    leased.setLease(grant.lease);
    auto slots = leased.initSlots(static_cast<unsigned>(grant.slots.size()));
    for (unsigned i = 0; i < grant.slots.size(); ++i) slots.set(i, grant.slots[i]);
    leased.setTiers({reinterpret_cast<const kj::byte*>(grant.tiers.data()), grant.tiers.size()});
  });
  return {};
}

Result<void> Session::on_reserve(std::uint64_t id, wire::ReserveRequest::Reader request) {
  const auto ns = number_of(request.getNs());
  if (!ns) return ns.error();
  if (request.getTier() >= index_of(Tier::disk)) return malformed("slots of no memory tier");
  const Lending::Request asked{
      context_.cache.borrower(id_, process_, *ns, static_cast<Tier>(request.getTier()), device_,
                              client_),
      id, std::min(request.getCount(), wire::kReserveMax)};
  if (auto slots = context_.lending.ask(asked, Clock::now())) send_reserved(id, std::move(*slots));
  return {};
}

void Session::send_reserved(std::uint64_t id, std::vector<SlotName> slots) {
  // Side by side as far as they are: a client's copies of neighbours go together.
  std::ranges::sort(slots);
  for (const SlotName slot : slots) introduce(slot);
  const bool told = reply(id, [&](Builder root) {
    auto list = root.initReserved().initSlots(static_cast<unsigned>(slots.size()));
    for (unsigned i = 0; i < slots.size(); ++i) list.set(i, slots[i]);
  });
  // A peer that never hears of them writes to none.
  if (!told) {
    for (const SlotName slot : slots) context_.cache.abandon(id_, slot);
  }
}

bool Session::send_recall(std::uint64_t number, const BlockCache::Recall& recall) {
  if (!answers_recalls_) return false;
  std::vector<std::pair<std::uint32_t, BlockCache::Recall::Keep>> keeps;  // by handle
  for (const auto& keep : recall.keeps) {
    for (std::uint32_t handle = 0; handle < namespaces_.size(); ++handle) {
      if (namespaces_[handle] == keep.ns) keeps.emplace_back(handle, keep);
    }
  }
  reply(0, [&](Builder root) {
    auto event = root.initRecall();
    event.setNumber(number);
    auto extents = event.initExtents(static_cast<unsigned>(recall.extents.size()));
    for (unsigned i = 0; i < extents.size(); ++i) extents.set(i, recall.extents[i].value);
    auto list = event.initKeeps(static_cast<unsigned>(keeps.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setNs(keeps[i].first);
      list[i].setTier(static_cast<std::uint8_t>(keeps[i].second.tier));
      list[i].setSlots(keeps[i].second.slots);
    }
  });
  return true;
}

Result<void> Session::on_commit(std::uint64_t id, wire::Commit::Reader commit) {
  const auto ns = number_of(commit.getNs());
  if (!ns) return ns.error();
  std::uint32_t taken = 0;
  const auto blocks = commit.getBlocks();
  prefetch_keys(blocks, 0);
  for (unsigned i = 0; i < blocks.size(); ++i) {
    if (i % kPrefetched == 0) prefetch_keys(blocks, i + kPrefetched);
    const auto block = blocks[i];
    if (block.getKey().size() != sizeof(Key) || block.getParent().size() != sizeof(Key) ||
        block.getTokens().size() % sizeof(Token) != 0 || block.getSlots().size() > kTiers) {
      return malformed("a block's key, parent, tokens or slots have the wrong size");
    }
    BlockCache::NewBlock fresh;
    std::memcpy(&fresh.key, block.getKey().begin(), sizeof(Key));
    std::memcpy(&fresh.parent, block.getParent().begin(), sizeof(Key));
    const auto tokens = values_of<Token>(block.getTokens());
    std::vector<SlotName> slots;
    for (const SlotName slot : block.getSlots()) slots.push_back(slot);
    fresh.block_index = block.getBlockIndex();
    fresh.tokens = tokens;
    fresh.slots = slots;
    taken += context_.cache.commit(id_, *ns, fresh) ? 1 : 0;
  }
  context_.lending.came_home();
  reply(id, [&](Builder root) { root.setCommitted(taken); });
  return {};
}

void Session::prefetch_keys(capnp::List<wire::Commit::Block>::Reader blocks, unsigned first) const {
  std::array<Key, kPrefetched> keys;
  const unsigned count = first < blocks.size() ? std::min(kPrefetched, blocks.size() - first) : 0;
  for (unsigned i = 0; i < count; ++i) {
    const auto key = blocks[first + i].getKey();
    if (key.size() == sizeof(Key)) std::memcpy(&keys[i], key.begin(), sizeof(Key));
  }
  context_.cache.catalogue().prefetch({keys.data(), count});
}

Result<void> Session::on_report(wire::Report::Reader report) {
  if (auto good = context_.told.take(report); !good) return good;
  for (const auto missed : report.getMissed()) {
    const auto ns = number_of(missed.getNs());
    if (!ns) return ns.error();
    if (*ns == kNotKnown) {
      context_.cache.catalogue().namespaces().missed(missed.getBlocks());
    } else {
      context_.cache.missed(*ns, missed.getBlocks());
    }
  }
  const auto bad_keys = report.getBadKeys();
  std::vector<Key> keys(bad_keys.size());
  for (unsigned i = 0; i < bad_keys.size(); ++i) {
    if (bad_keys[i].size() != sizeof(Key)) return malformed("a key of the wrong size");
    std::memcpy(&keys[i], bad_keys[i].begin(), sizeof(Key));
  }
  if (keys.empty()) return {};
  // They may lie among many that are held.
  constexpr double kHeldBlocksOfOneRequest = 256;
  charge(static_cast<double>(context_.cache.held_by(id_).leased_blocks) / kHeldBlocksOfOneRequest);
  if (read_only_) {
    context_.refused_reports += keys.size();
  } else {
    reported_ = std::move(keys);
  }
  return {};
}

// As many of the keys that a report called bad as a turn may have records read for.
void Session::look_at_reported() {
  std::uint64_t largest = 1;
  for (const std::uint16_t ns : namespaces_) {
    if (ns == kNotKnown) continue;
    largest = std::max(largest, context_.cache.catalogue().namespaces()[ns].layout.record_bytes);
  }
  const std::size_t count =
      std::clamp<std::size_t>(limits::kReportBytesMax / largest, 1, reported_.size());
  const auto first = reported_.end() - static_cast<std::ptrdiff_t>(count);
  context_.refused_reports +=
      context_.cache.report_bad(id_, namespaces_, std::span(first, reported_.end()));
  reported_.erase(first, reported_.end());
}

Result<void> Session::on_flush(std::uint64_t id) {
  if (flushes_ == limits::kFlushesPerSessionMax) return malformed("too many flushes at a time");
  ++flushes_;
  context_.cache.flush([weak = weak_from_this(), id](const Result<void>& result) {
    const auto self = weak.lock();
    if (!self) return;
    --self->flushes_;
    if (!result) return self->reply_error(id, result.error());
    self->reply(id, [](Builder root) { root.setDone(); });
  });
  return {};
}

}  // namespace kvtier::daemon
