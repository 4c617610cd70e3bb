// Keeping the conversation: frames, welcome, and what the daemon says unasked.
#include <algorithm>

#include "client/session/limits.h"
#include "client/session/session.h"

namespace kvtier::session {
namespace {

// Extent.kind
constexpr std::uint8_t kMemfd = 0;
constexpr std::uint8_t kCuda = 1;

Error malformed(const std::string& what) {
  return make_error(Errc::malformed, "kvtierd sent " + what);
}

}  // namespace

void Session::tell(const Fill& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<wire::Message>());
  if (auto good = socket_.push(message); !good && !broken_) broken_ = good.error();
}

void Session::ask(const Fill& fill, Done done, Patience patience) {
  if (pending_.size() >= kPendingMax) {
    [[maybe_unused]] const auto ignored =
        done(make_error(Errc::unavailable, "too many requests wait for kvtierd"));
    return;
  }
  const std::uint64_t id = ++last_id_;
  pending_.emplace(id, Pending{std::move(done), patience, Clock::now()});
  tell([&](wire::Message::Builder m) {
    m.setId(id);
    fill(m);
  });
}

void Session::send() {
  if (!socket_.unsent()) return;
  const auto before = Clock::now();
  if (auto good = socket_.send(); !good) {
    if (!broken_) broken_ = good.error();
  } else if (connection_ && !socket_.unsent()) {
    connection_->sent_all(before);
  }
}

bool Session::overdue() const {
  const auto owed = std::ranges::find_if(
      pending_, [](const auto& p) { return p.second.patience == Patience::bounded; });
  return owed != pending_.end() &&
         Clock::now() - std::max(owed->second.asked, last_received_) >= answer_max_;
}

// This thread may have been away for as long (a driver that maps memory can take its time): what
// came meanwhile lies in the socket and counts.
Result<void> Session::check_answers() {
  while (overdue()) {
    const auto heard = last_received_;
    if (auto good = receive(); !good) return good;
    if (last_received_ != heard) continue;
    return make_error(Errc::unavailable, "kvtierd at " + options_.socket +
                                             " has not answered for " +
                                             std::to_string(answer_max_.count()) + " ms");
  }
  return {};
}

Result<void> Session::receive() {
  std::vector<wire::Frame> frames;
  const auto received = socket_.receive(frames);
  if (!frames.empty()) last_received_ = Clock::now();
  for (wire::Frame& frame : frames) {
    if (auto good = handle(frame); !good) return good;
  }
  return received;
}

Result<void> Session::handle(wire::Frame& frame) {
  std::uint64_t id = 0;
  Result<void> handled;
  const auto read = frame.read([&](wire::Message::Reader message) {
    id = message.getId();
    if (id == 0) handled = handle_event(frame, message);
  });
  if (!read) return read;
  return id == 0 ? handled : handle_reply(frame, id);
}

Result<void> Session::handle_reply(wire::Frame& frame, std::uint64_t id) {
  auto node = pending_.extract(id);
  if (node.empty()) return malformed("an answer that nobody asked for");
  const Done& done = node.mapped().done;
  Result<void> handled;
  const auto read = frame.read([&](wire::Message::Reader message) {
    if (message.isError()) {
      handled = done(error_of(message.getError()));
    } else if (message.isWelcome()) {
      // The one answer that carries a descriptor.
      handled = connection_ ? malformed("a second welcome") : welcome(frame, message);
    } else {
      handled = done(message);
    }
  });
  if (read) return handled;
  // Its bytes were no message; whoever waits must hear of it all the same.
  [[maybe_unused]] const auto ignored = done(read.error());
  return read;
}

void Session::say_hello() {
  hello_sent_ = Clock::now();
  if (!gpu_tier_) std::erase_if(extents_, [](const auto& e) { return e.second->on_gpu; });
  const auto done = [](Result<wire::Message::Reader> reply) -> Result<void> {
    if (!reply) return reply.error();
    return malformed("something else than a welcome");
  };
  ask(
      [&](wire::Message::Builder m) {
        auto hello = m.initHello();
        hello.setVersion(wire::kProtocolVersion);
        hello.setFeatures(wire::kFeatures);
        hello.setName(options_.name);
        hello.setReadOnly(options_.read_only);
        hello.setClient(client_id_);
        if (!extents_.empty()) {
          hello.setLineage({reinterpret_cast<const kj::byte*>(lineage_.data()), lineage_.size()});
          hello.setExtentsReadOnly(read_only_);
          auto extents = hello.initExtents(static_cast<unsigned>(extents_.size()));
          unsigned i = 0;
          for (const auto& [id, mapping] : extents_) extents.set(i++, id);
        }
        if (gpu_ && gpu_tier_) {
          hello.setGpu({reinterpret_cast<const kj::byte*>(gpu_->uuid().data()), sizeof(GpuUuid)});
        }
      },
      done);
}

Result<void> Session::welcome(wire::Frame& frame, wire::Message::Reader message) {
  const auto welcome = message.getWelcome();
  if (welcome.getVersion() != wire::kProtocolVersion) {
    return make_error(Errc::version, "kvtierd at " + options_.socket + " speaks protocol version " +
                                         std::to_string(welcome.getVersion()) +
                                         ", this client version " +
                                         std::to_string(wire::kProtocolVersion) +
                                         "; install the same release of both");
  }
  if (welcome.getLeaseMs() == 0) return malformed("a lease time of 0");
  const UniqueFd fd = frame.take_descriptor();
  if (auto good = check_size(fd, welcome.getDirectoryBytes()); !good) return good;
  auto directory = DirectoryView::map(fd.get(), welcome.getDirectoryBytes(), welcome.getDevice());
  if (!directory) return directory.error();
  if (auto good = recall_extents(welcome); !good) return good;
  auto socket = socket_.copy();
  if (!socket) return socket.error();
  connection_ = std::make_shared<Connection>(std::move(*socket), std::move(*directory),
                                             milliseconds(welcome.getLeaseMs()), hello_sent_);
  read_only_ = options_.read_only || welcome.getReadOnly();
  right_ = {nullptr, [weak = weak_from_this()](std::nullptr_t) {
              if (const auto self = weak.lock()) self->wake();
            }};
  directory_.publish(connection_);
  welcomed_at_ = Clock::now();
  next_report_ = Clock::now() + connection_->lease_time() / 3;
  Counters::add(counters_.connects);
  std::vector<std::shared_ptr<NamespaceEntry>> namespaces;
  {
    const std::lock_guard lock(mutex_);
    namespaces = namespaces_;
  }
  for (const auto& ns : namespaces) open_on_daemon(ns);
  const std::lock_guard lock(mutex_);
  connected_ = true;
  state_changed_.notify_all();
  return {};
}

// The mappings whose extents are the daemon's too are kept, with all that was done to have them
// (pages, pins, imports); the others are dropped.
Result<void> Session::recall_extents(wire::Welcome::Reader welcome) {
  const auto lineage = welcome.getLineage();
  constexpr std::size_t kLineageBytesMax = 64;
  if (lineage.size() > kLineageBytesMax) return malformed("a lineage of the wrong size");
  if (welcome.getExtents().size() > extents_.size())
    return malformed("more extents than were said to be known");
  const auto* first = reinterpret_cast<const std::byte*>(lineage.begin());
  auto before = std::exchange(extents_, {});
  unmapped_.clear();
  for (const std::uint32_t id : welcome.getExtents()) {
    auto known = before.extract(id);
    if (known.empty()) return malformed("an extent as known that is not");
    extents_.insert(std::move(known));
  }
  lineage_.assign(first, first + lineage.size());
  return {};
}

// Once nobody in this process can be writing to slots that earlier connections had reserved, the
// daemon may use them again.
void Session::let_go_of_old_slots() {
  std::erase_if(old_rights_, [](const auto& right) { return right.expired(); });
  if (!old_rights_.empty()) return;
  owes_let_go_ = false;
  tell([](wire::Message::Builder m) { m.setLetGo(); });
}

Result<void> Session::handle_event(wire::Frame& frame, wire::Message::Reader message) {
  if (!connection_) {
    if (message.isError()) return error_of(message.getError());
    return malformed("an event before its welcome");
  }
  switch (message.which()) {
    case wire::Message::EXTENT:
      return map_extent(frame, message.getExtent());
    case wire::Message::EXTENT_GONE:
      extents_.erase(message.getExtentGone());
      unmapped_.erase(message.getExtentGone());
      return {};
    case wire::Message::READY:
      return land(message.getReady());
    case wire::Message::RECALL:
      recall(message.getRecall());
      return {};
    case wire::Message::NAMESPACE_CLOSED:
      close_namespace(message.getNamespaceClosed());
      return {};
    case wire::Message::ERROR:
      return error_of(message.getError());
    default:
      return malformed("an unknown event");
  }
}

Result<std::shared_ptr<const ExtentMapping>> Session::mapping_of(wire::Frame& frame,
                                                                 wire::Extent::Reader extent) {
  const auto tier = static_cast<Tier>(extent.getTier());
  const UniqueFd fd = frame.take_descriptor();
  if (extent.getKind() == kCuda && gpu_ && tier == Tier::device) {
    auto mapped = gpu_->map(fd, extent.getBytes(), extent.getSlotBytes());
    // The next connection has no part in that tier.
    if (!mapped) gpu_tier_ = false;
    return mapped;
  }
  if (extent.getKind() != kMemfd) return malformed("memory of a kind that this client cannot map");
  const auto access = read_only() ? Mapping::Access::read : Mapping::Access::read_write;
  auto mapped = ExtentMapping::map(fd, tier, extent.getBytes(), extent.getSlotBytes(), access);
  if (!mapped) return mapped.error();
  if (gpu_) return gpu_->pin(std::move(*mapped));
  return std::shared_ptr<const ExtentMapping>(std::move(*mapped));
}

Result<void> Session::map_extent(wire::Frame& frame, wire::Extent::Reader extent) {
  if (extent.getTier() >= index_of(Tier::disk)) return malformed("an extent that is not memory");
  if (extents_.size() + unmapped_.size() >= kExtentsMax) return malformed("too many extents");
  if (extents_.contains(extent.getId()) || unmapped_.contains(extent.getId()))
    return malformed("an extent twice");
  auto mapping = mapping_of(frame, extent);
  if (mapping) {
    extents_.emplace(extent.getId(), *mapping);
  } else if (extent.getKind() == kMemfd && mapping.error().code == Errc::io) {
    // No addresses left, or whoever shares the memory has seen to it: what lies there is missing,
    // all else is there.
    unmapped_.insert(extent.getId());
  } else {
    return mapping.error();
  }
  return {};
}

SlotRef Session::resolve(std::uint64_t name, std::uint64_t record_bytes) const {
  const auto extent = extents_.find(static_cast<std::uint32_t>(name >> 32));
  if (extent == extents_.end() || (name & 0xFFFFFFFF) >= extent->second->slots() ||
      extent->second->slot_bytes < record_bytes) {
    return {};
  }
  return {name, extent->second};
}

Result<void> Session::land(wire::Ready::Reader ready) {
  const auto blocks = ready.getBlocks();
  const auto slots = ready.getSlots();
  if (blocks.size() != slots.size()) return malformed("a ready event with blocks but no slots");
  const auto lease = leases_.find(ready.getLease());
  // Released while the event was on its way.
  const auto hold = lease == leases_.end() ? nullptr : lease->second.lock();
  if (!hold) return {};
  if (blocks.size() > hold->keys().size()) return malformed("a block that was not leased");
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    SlotRef slot = resolve(slots[i], hold->ns().layout.record_bytes);
    if (!slot && slots[i] != 0 && !lies_in_unmapped(slots[i]))
      return malformed("a slot that is in no extent");
    if (!hold->land(blocks[i], std::move(slot))) return malformed("a block that was not leased");
  }
  return {};
}

}  // namespace kvtier::session
