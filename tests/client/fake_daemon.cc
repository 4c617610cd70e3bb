#include "tests/client/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "core/base/check.h"

namespace kvtier::test {
namespace {

constexpr std::chrono::seconds kPatience{20};

Key key_of(capnp::Data::Reader data) {
  Key key;
  KVTIER_CHECK(data.size() == sizeof key);
  std::memcpy(&key, data.begin(), sizeof key);
  return key;
}

}  // namespace

FakeDaemon::FakeDaemon(std::uint64_t slot_bytes)
    : slot_bytes_(slot_bytes), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-test-XXXXXX").string();
  KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  path_ = folder_ / "daemon.sock";
  for (std::size_t i = 0; i < 2; ++i) {
    extent_fds_[i] = make_memfd("fake-extent", kSlots * slot_bytes).value();
    extents_[i] =
        Mapping::map(extent_fds_[i].get(), kSlots * slot_bytes, Mapping::Access::read_write)
            .value();
  }
  const std::array<std::byte, 16> boot_id{};
  directory_ = DirectoryWriter::create(1024, boot_id).value();
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  KVTIER_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  KVTIER_CHECK(::listen(listener_.get(), 16) == 0);
  thread_ = std::thread([this] { run(); });
}

FakeDaemon::~FakeDaemon() {
  with([&](State&) { stopping_ = true; });
  const std::uint64_t one = 1;
  KVTIER_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one);
  thread_.join();
  std::filesystem::remove_all(folder_);
}

bool FakeDaemon::eventually(const std::function<bool(const State&)>& holds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return holds(state_); });
}

void FakeDaemon::hang_up() {
  const std::lock_guard lock(mutex_);
  for (auto& peer : peers_) ::shutdown(peer->fd.get(), SHUT_RDWR);
}

void FakeDaemon::answer_ignored() {
  const std::lock_guard lock(mutex_);
  state_.ignored.clear();
  for (auto& peer : peers_) {
    for (auto& frame : std::exchange(peer->unanswered, {})) handle(*peer, frame, true);
  }
}

void FakeDaemon::send_ready(std::uint64_t lease, std::vector<std::uint32_t> blocks,
                            std::vector<std::uint64_t> slots) {
  const std::lock_guard lock(mutex_);
  for (auto& peer : peers_) {
    send_extents(*peer);
    reply(*peer, 0, [&](wire::Message::Builder m) {
      auto ready = m.initReady();
      ready.setLease(lease);
      auto b = ready.initBlocks(static_cast<unsigned>(blocks.size()));
      auto s = ready.initSlots(static_cast<unsigned>(slots.size()));
      for (unsigned i = 0; i < blocks.size(); ++i) b.set(i, blocks[i]);
      for (unsigned i = 0; i < slots.size(); ++i) s.set(i, slots[i]);
    });
  }
}

void FakeDaemon::send_namespace_closed() {
  const std::lock_guard lock(mutex_);
  for (auto& peer : peers_)
    reply(*peer, 0, [](wire::Message::Builder m) { m.setNamespaceClosed(kHandle); });
}

void FakeDaemon::send_recall(std::uint64_t number, std::vector<std::uint32_t> extents,
                             std::optional<std::pair<Tier, std::uint32_t>> keep) {
  const std::lock_guard lock(mutex_);
  for (auto& peer : peers_) {
    reply(*peer, 0, [&](wire::Message::Builder m) {
      auto recall = m.initRecall();
      recall.setNumber(number);
      auto list = recall.initExtents(static_cast<unsigned>(extents.size()));
      for (unsigned i = 0; i < list.size(); ++i) list.set(i, extents[i]);
      if (!keep) return;
      auto of = recall.initKeeps(1)[0];
      of.setNs(kHandle);
      of.setTier(static_cast<std::uint8_t>(keep->first));
      of.setSlots(keep->second);
    });
  }
}

void FakeDaemon::send_bytes(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  for (auto& peer : peers_) {
    [[maybe_unused]] const auto sent =
        ::send(peer->fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
}

std::uint64_t FakeDaemon::slot_name(Tier tier, std::uint32_t index) const {
  return (index_of(tier) + 1) << 32 | index;
}

std::span<std::byte> FakeDaemon::slot(std::uint64_t name) {
  return extents_.at((name >> 32) - 1)
      .bytes()
      .subspan((name & 0xFFFFFFFF) * slot_bytes_, slot_bytes_);
}

void FakeDaemon::publish(const Key& key, TierSet tiers, std::uint64_t slot) {
  const std::lock_guard lock(mutex_);
  enter(key, tiers);
  state_.blocks[key] = slot;
}

void FakeDaemon::enter(const Key& key, TierSet tiers) {
  // A number for each key: blocks of one prefix share a bucket, which tells them apart by it.
  const auto any = [](std::uint32_t) { return true; };
  std::uint32_t number = directory_.number_of(key, any);
  if (number == DirectoryWriter::kNoNumber) {
    number = static_cast<std::uint32_t>(directory_.blocks());  // none is ever erased here
    directory_.insert(key, number);
  }
  directory_.set(key, number, tiers);
}

void FakeDaemon::run() {
  for (;;) {
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (auto& peer : peers_) fds.push_back({peer->fd.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), -1);
    const std::lock_guard lock(mutex_);
    for (auto& peer : peers_) serve(*peer);
    std::erase_if(peers_, [](const auto& peer) { return peer->ended; });
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      auto peer = std::make_unique<Peer>();
      peer->fd = std::move(fd);
      peers_.push_back(std::move(peer));
      ++state_.connections;
    }
    state_.open_connections = static_cast<int>(peers_.size());
    changed_.notify_all();
  }
}

void FakeDaemon::serve(Peer& peer) {
  std::vector<wire::Frame> frames;
  const auto received = peer.reader.receive(peer.fd.get(), frames);
  for (wire::Frame& frame : frames) handle(peer, frame, false);
  peer.ended = peer.ended || !received;
}

void FakeDaemon::handle(Peer& peer, wire::Frame& frame, bool again) {
  bool ignored = false;
  const auto read = frame.read([&](wire::Message::Reader message) {
    const Which which = message.which();
    if (!again) ++state_.seen[which];
    ignored = state_.ignored.contains(which);
    if (state_.fatal.contains(which)) {
      ::shutdown(peer.fd.get(), SHUT_RDWR);
    } else if (const auto refusal = state_.refused.find(which); refusal != state_.refused.end()) {
      reply(peer, message.getId(), [&](wire::Message::Builder m) {
        auto error = m.initError();
        error.setCode(static_cast<std::uint16_t>(refusal->second.code));
        error.setMessage(refusal->second.message);
      });
    } else if (!ignored) {
      dispatch(peer, message);
    }
  });
  KVTIER_CHECK(read.has_value());
  if (ignored) peer.unanswered.push_back(std::move(frame));
}

void FakeDaemon::dispatch(Peer& peer, wire::Message::Reader message) {
  const std::uint64_t id = message.getId();
  switch (message.which()) {
    case Which::HELLO:
      state_.read_only_asked = message.getHello().getReadOnly();
      return welcome(peer, id, message.getHello());
    case Which::LET_GO:
      return;
    case Which::OPEN_NAMESPACE:
      return reply(peer, id, [](wire::Message::Builder m) { m.setOpened(kHandle); });
    case Which::LEASE:
      return lease(peer, id, message.getLease());
    case Which::RELEASE:
      for (const auto lease : message.getRelease()) state_.released.push_back(lease);
      return;
    case Which::RELEASE_PARTLY:
      for (const auto release : message.getReleasePartly()) {
        state_.released.push_back(release.getLease());
        state_.usable[release.getLease()] = release.getUsable();
      }
      return;
    case Which::RESERVE:
      return reserve(peer, id, message.getReserve());
    case Which::COMMIT:
      return commit(peer, id, message.getCommit());
    case Which::ABANDON:
      for (const auto slot : message.getAbandon()) state_.abandoned.push_back(slot);
      return;
    case Which::RETURNED:
      state_.returned.push_back(message.getReturned());
      state_.abandoned_before_returned = state_.abandoned.size();
      return;
    case Which::REPORT:
      return take_report(message.getReport());
    case Which::FLUSH:
      return reply(peer, id, [](wire::Message::Builder m) { m.setDone(); });
    case Which::STATUS:
      return reply(peer, id,
                   [](wire::Message::Builder m) { m.initStatusReply().setVersion("fake"); });
    default:
      KVTIER_CHECK(false);  // a message that a client may not send
  }
}

void FakeDaemon::welcome(Peer& peer, std::uint64_t id, wire::Hello::Reader hello) {
  if (state_.mangle_hello) {
    std::vector<std::byte> bytes;
    state_.mangle_hello(bytes);
    [[maybe_unused]] const auto sent =
        ::send(peer.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return;
  }
  state_.known_extents.clear();
  const auto lineage = hello.getLineage();
  if (!state_.lineage.empty() && std::string(reinterpret_cast<const char*>(lineage.begin()),
                                             lineage.size()) == state_.lineage) {
    for (const auto extent : hello.getExtents()) state_.known_extents.insert(extent);
  }
  reply(
      peer, id,
      [&](wire::Message::Builder m) {
        auto w = m.initWelcome();
        w.setLineage(
            {reinterpret_cast<const kj::byte*>(state_.lineage.data()), state_.lineage.size()});
        auto extents = w.initExtents(static_cast<unsigned>(state_.known_extents.size()));
        unsigned at = 0;
        for (const auto extent : state_.known_extents) extents.set(at++, extent);
        w.setVersion(state_.version);
        w.setLeaseMs(state_.lease_ms);
        w.setDevice(state_.device);
        w.setReadOnly(state_.read_only || state_.read_only_asked);
        w.setDirectoryBytes(directory_.bytes());
        w.setFrameBytesMax(wire::kFrameBytesMax);
      },
      UniqueFd(::dup(directory_.fd())));
}

void FakeDaemon::send_extents(Peer& peer) {
  if (std::exchange(peer.extents_sent, true)) return;
  for (std::uint8_t i = 0; i < 2; ++i) {
    if (state_.known_extents.contains(i + 1U)) continue;
    ++state_.extents_sent;
    reply(
        peer, 0,
        [&](wire::Message::Builder m) {
          auto extent = m.initExtent();
          extent.setId(i + 1U);
          extent.setTier(i);
          extent.setBytes(kSlots * slot_bytes_);
          extent.setSlotBytes(slot_bytes_);
          extent.setKind(state_.extent_kind);
        },
        state_.read_only || state_.read_only_asked || state_.unmappable.contains(i + 1U)
            ? UniqueFd(::open(("/proc/self/fd/" + std::to_string(extent_fds_[i].get())).c_str(),
                              O_RDONLY | O_CLOEXEC))
            : UniqueFd(::dup(extent_fds_[i].get())));
  }
}

void FakeDaemon::lease(Peer& peer, std::uint64_t id, wire::LeaseRequest::Reader request) {
  send_extents(peer);
  state_.asked_lookups += request.getLookedUp();
  std::vector<std::uint64_t> slots;
  const auto keys = request.getKeys();
  for (std::size_t at = 0; at < keys.size(); at += sizeof(Key)) {
    const auto block = state_.blocks.find(key_of(keys.slice(at, at + sizeof(Key))));
    if (block == state_.blocks.end()) break;
    slots.push_back(block->second);
  }
  const std::uint64_t lease = slots.empty() ? 0 : ++state_.last_lease;
  reply(peer, id, [&](wire::Message::Builder m) {
    auto leased = m.initLeased();
    leased.setLease(lease);
    auto names = leased.initSlots(static_cast<unsigned>(slots.size()));
    auto tiers = leased.initTiers(static_cast<unsigned>(slots.size()));
    for (unsigned i = 0; i < slots.size(); ++i) {
      names.set(i, slots[i]);
      tiers[i] = slots[i] == 0 ? 2 : static_cast<kj::byte>((slots[i] >> 32) - 1);
    }
  });
}

void FakeDaemon::reserve(Peer& peer, std::uint64_t id, wire::ReserveRequest::Reader request) {
  send_extents(peer);
  const auto tier = static_cast<Tier>(request.getTier());
  auto& left = state_.slots_left.at(request.getTier());
  const std::uint32_t asked = std::min(request.getCount(), left);
  left -= asked;
  const std::uint32_t count = asked + (asked == 0 ? 0 : state_.slots_more);
  reply(peer, id, [&](wire::Message::Builder m) {
    auto slots = m.initReserved().initSlots(count);
    for (unsigned i = 0; i < count; ++i)
      slots.set(i, slot_name(tier, next_slot_[index_of(tier)]++ % kSlots));
  });
}

void FakeDaemon::commit(Peer& peer, std::uint64_t id, wire::Commit::Reader commit) {
  for (const auto block : commit.getBlocks()) {
    CommittedBlock c;
    c.key = key_of(block.getKey());
    c.parent = key_of(block.getParent());
    c.block_index = block.getBlockIndex();
    c.prompt_blocks = block.getPromptBlocks();
    c.answer_tokens = block.getAnswerTokens();
    c.tokens.resize(block.getProof().size() / sizeof(Token));
    std::memcpy(c.tokens.data(), block.getProof().begin(), block.getProof().size());
    TierSet tiers;
    for (const auto slot : block.getSlots()) {
      c.slots.push_back(slot);
      tiers = tiers.with(static_cast<Tier>((slot >> 32) - 1));
    }
    enter(c.key, {static_cast<std::uint8_t>(directory_.find(c.key).bits | tiers.bits)});
    state_.committed.push_back(std::move(c));
  }
  reply(peer, id, [&](wire::Message::Builder m) { m.setCommitted(commit.getBlocks().size()); });
}

void FakeDaemon::take_report(wire::Report::Reader report) {
  for (const auto missed : report.getMissed()) state_.reported_misses += missed.getBlocks();
  for (const std::uint64_t dropped : report.getDropped()) state_.reported_drops += dropped;
  state_.reported_faults += report.getHeaderFaults() + report.getProofFaults();
  if (report.getBadKeys().size() != 0) state_.released_before_bad_keys = state_.released.size();
  for (const auto key : report.getBadKeys()) state_.bad_keys.push_back(key_of(key));
}

void FakeDaemon::reply(Peer& peer, std::uint64_t id,
                       const std::function<void(wire::Message::Builder)>& fill,
                       UniqueFd descriptor) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Message>();
  root.setId(id);
  fill(root);
  KVTIER_CHECK(peer.writer.push(message, std::move(descriptor)).has_value());
  // A peer that has gone may have left frames behind: reading tells when that is all.
  (void)peer.writer.send(peer.fd.get());
}

}  // namespace kvtier::test
