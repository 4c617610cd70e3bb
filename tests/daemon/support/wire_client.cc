#include "tests/daemon/support/wire_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>

#include "core/base/check.h"
#include "tests/daemon/support/kvtierd_process.h"

namespace kvtier::daemon::testing {

WireClient::WireClient(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KVTIER_CHECK(socket.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, socket.c_str(), socket.size());
  comes_to_hold([&] {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      return false;
    socket_ = std::move(fd);
    return true;
  });
  const timeval patience{20, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

WireClient WireClient::greeted(const std::string& socket, bool read_only) {
  WireClient client(socket);
  const bool welcome = client.request(
      [&](Builder m) {
        auto hello = m.initHello();
        hello.setVersion(wire::kProtocolVersion);
        hello.setReadOnly(read_only);
      },
      [&](Reader m) { client.read_only_ = m.getWelcome().getReadOnly(); });
  KVTIER_CHECK(welcome);
  return client;
}

bool WireClient::send_raw(std::span<const std::byte> bytes, int descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  while (!bytes.empty()) {
    iovec from{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &from;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(c), &descriptor, sizeof descriptor);
    }
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    descriptor = -1;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool WireClient::send(const std::function<void(Builder)>& fill, std::uint64_t id) {
  return send_raw(message_bytes([&](Builder m) {
    m.setId(id);
    fill(m);
  }));
}

bool WireClient::hello(std::uint32_t version) {
  return send([&](Builder m) { m.initHello().setVersion(version); });
}

void WireClient::finish_sending() {
  ::shutdown(socket_.get(), SHUT_WR);
}

std::optional<wire::Frame> WireClient::next() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (frames_.empty()) {
    pollfd readable{socket_.get(), POLLIN, 0};
    ::poll(&readable, 1, 1000);
    if (std::chrono::steady_clock::now() > deadline) return std::nullopt;
    std::vector<wire::Frame> frames;
    const auto received = reader_.receive(socket_.get(), frames);
    for (auto& frame : frames) frames_.push_back(std::move(frame));
    if (!received && frames_.empty()) {
      error_ = received.error();
      return std::nullopt;
    }
  }
  wire::Frame frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

void WireClient::on_event(Reader message, wire::Frame& frame) {
  if (message.isExtent()) {
    const auto extent = message.getExtent();
    UniqueFd memory = frame.take_descriptor();
    const auto access = read_only_ ? Mapping::Access::read : Mapping::Access::read_write;
    auto mapping = Mapping::map(memory.get(), extent.getBytes(), access).value();
    extents_[extent.getId()] = {std::move(memory), std::move(mapping), extent.getSlotBytes()};
  } else if (message.isReady()) {
    const auto event = message.getReady();
    const auto blocks = event.getBlocks();
    const auto slots = event.getSlots();
    for (unsigned i = 0; i < blocks.size(); ++i) ready[blocks[i]] = slots[i];
  } else if (message.isNamespaceClosed()) {
    closed.push_back(message.getNamespaceClosed());
  } else if (message.isError()) {
    why = message.getError().getMessage().cStr();
  } else if (message.isRecall()) {
    Recall recall{message.getRecall().getNumber(), {}, {}};
    for (const auto extent : message.getRecall().getExtents()) recall.extents.push_back(extent);
    for (const auto keep : message.getRecall().getKeeps())
      recall.keeps.push_back({keep.getNs(), keep.getSlots()});
    ++recalls;
    if (on_recall) on_recall(recall);
  }
}

bool WireClient::request(const std::function<void(Builder)>& fill,
                         const std::function<void(Reader)>& use) {
  error_.reset();
  const std::uint64_t id = ++last_id_;
  if (!send(fill, id)) return false;
  while (auto frame = next()) {
    bool answered = false;
    const auto read = frame->read([&](Reader message) {
      answered = message.getId() == id;
      if (!answered) return on_event(message, *frame);
      if (message.isError()) {
        error_ = make_error(static_cast<Errc>(message.getError().getCode()),
                            message.getError().getMessage().cStr());
      } else {
        use(message);
        if (message.isWelcome()) directory_ = frame->take_descriptor();
      }
    });
    if (!read) return false;
    if (answered) return !error_;
  }
  return false;
}

bool WireClient::is_closed() {
  error_.reset();
  while (const auto frame = next()) {
    (void)frame->read([&](Reader message) {
      if (message.getId() == 0 && message.isError()) why = message.getError().getMessage().cStr();
    });
  }
  return error_ && error_->code == Errc::unavailable;
}

std::optional<std::uint32_t> WireClient::try_open(const Namespace& ns) {
  const auto encoded = encode(ns);
  std::optional<std::uint32_t> handle;
  request(
      [&](Builder m) {
        m.setOpenNamespace({reinterpret_cast<const kj::byte*>(encoded.data()), encoded.size()});
      },
      [&](Reader m) { handle = m.getOpened(); });
  return handle;
}

std::uint32_t WireClient::open(const Namespace& ns) {
  const auto handle = try_open(ns);
  KVTIER_CHECK(handle.has_value());
  return *handle;
}

std::span<std::byte> WireClient::record(std::uint64_t slot) const {
  const Extent& extent = extents_.at(static_cast<std::uint32_t>(slot >> 32));
  return extent.memory.bytes().subspan(static_cast<std::uint32_t>(slot) * extent.slot_bytes,
                                       extent.slot_bytes);
}

std::vector<WireClient::Seen> WireClient::look(std::uint32_t ns, const Namespace& of,
                                               std::span<const TestBlock> prefix) {
  const auto keys = keys_of(prefix);
  std::vector<std::uint64_t> slots;
  std::uint64_t lease = 0;
  ready.clear();
  request(
      [&](Builder m) {
        auto l = m.initLease();
        l.setNs(ns);
        l.setKeys({reinterpret_cast<const kj::byte*>(keys.data()), keys.size() * sizeof(Key)});
      },
      [&](Reader m) {
        lease = m.getLeased().getLease();
        for (const auto slot : m.getLeased().getSlots()) slots.push_back(slot);
      });
  const auto pending = static_cast<std::size_t>(std::ranges::count(slots, std::uint64_t{0}));
  std::vector<Seen> seen;
  if (slots.empty() || !wait_ready(pending)) return seen;
  const RecordLayout layout = RecordLayout::of(of);
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    const std::uint64_t slot = slots[i] != 0 ? slots[i] : ready.at(i);
    const bool right = slot != 0 && record_is(record(slot), layout, prefix[i]);
    seen.push_back(slot == 0 ? Seen::failed : right ? Seen::right : Seen::wrong);
  }
  send([&](Builder m) { m.initRelease(1).set(0, lease); });
  return seen;
}

std::vector<std::uint64_t> WireClient::reserve(std::uint32_t ns, std::uint32_t count, Tier tier) {
  std::vector<std::uint64_t> slots;
  request(
      [&](Builder m) {
        auto r = m.initReserve();
        r.setNs(ns);
        r.setTier(static_cast<std::uint8_t>(tier));
        r.setCount(count);
      },
      [&](Reader m) {
        for (const auto slot : m.getReserved().getSlots()) slots.push_back(slot);
      });
  return slots;
}

bool WireClient::put(std::uint32_t ns, const Namespace& of, const TestBlock& block,
                     std::initializer_list<Tier> tiers) {
  std::vector<std::uint64_t> filled;
  for (const Tier tier : tiers) {
    const auto slots = reserve(ns, 1, tier);
    if (slots.empty()) return false;
    fill_record(record(slots[0]), RecordLayout::of(of), block);
    filled.push_back(slots[0]);
  }
  std::uint32_t taken = 0;
  request([&](Builder m) { fill_commit(m, ns, block, filled); },
          [&](Reader m) { taken = m.getCommitted(); });
  return taken == 1;
}

std::vector<std::uint64_t> WireClient::lease(std::uint32_t ns, std::span<const TestBlock> prefix) {
  const auto keys = keys_of(prefix);
  std::vector<std::uint64_t> slots;
  request(
      [&](Builder m) {
        auto l = m.initLease();
        l.setNs(ns);
        l.setKeys({reinterpret_cast<const kj::byte*>(keys.data()), keys.size() * sizeof(Key)});
      },
      [&](Reader m) {
        lease_ = m.getLeased().getLease();
        for (const auto slot : m.getLeased().getSlots()) slots.push_back(slot);
      });
  return slots;
}

void WireClient::report(const Key& key) {
  send([&](Builder m) {
    m.initReport().initBadKeys(1).set(0, {reinterpret_cast<const kj::byte*>(&key), sizeof key});
  });
}

bool WireClient::report_bad(std::uint32_t ns, std::span<const TestBlock> prefix, bool damage) {
  ready.clear();
  const auto slots = lease(ns, prefix);
  const auto pending = static_cast<std::size_t>(std::ranges::count(slots, std::uint64_t{0}));
  if (!wait_ready(pending)) return false;
  const auto last = static_cast<std::uint32_t>(prefix.size() - 1);
  std::uint64_t slot = slots.size() == prefix.size() ? slots.back() : 0;
  if (slots.size() == prefix.size() && slot == 0) slot = ready.at(last);
  if (slot != 0) {
    if (damage) record(slot)[0] ^= std::byte{1};
    report(prefix.back().key());
  }
  send([&](Builder m) { m.initRelease(1).set(0, lease_); });
  return slot != 0;
}

bool WireClient::wait_ready(std::size_t blocks) {
  while (ready.size() < blocks) {
    auto frame = next();
    if (!frame) return false;
    const auto read = frame->read([&](Reader message) { on_event(message, *frame); });
    if (!read) return false;
  }
  return true;
}

std::optional<WireClient::Status> WireClient::status() {
  std::optional<Status> status;
  request([](Builder m) { m.setStatus(); },
          [&](Reader m) {
            const auto s = m.getStatusReply();
            status = Status{s.getFrameErrors(),   s.getSessions(),         s.getLeases(),
                            s.getReservedSlots(), s.getQuarantinedSlots(), s.getFaults(),
                            s.getDenied(),        s.getTurnedAway(),       s.getRefusedReports()};
          });
  return status;
}

void fill_commit(WireClient::Builder message, std::uint32_t ns, const TestBlock& block,
                 std::span<const std::uint64_t> slots) {
  auto commit = message.initCommit();
  commit.setNs(ns);
  auto b = commit.initBlocks(1)[0];
  b.setKey({reinterpret_cast<const kj::byte*>(&block.identity.key), sizeof(Key)});
  b.setParent({reinterpret_cast<const kj::byte*>(&block.identity.parent), sizeof(Key)});
  b.setBlockIndex(block.identity.block_index);
  b.setProof({reinterpret_cast<const kj::byte*>(block.proof().data()), block.proof().size()});
  auto list = b.initSlots(static_cast<unsigned>(slots.size()));
  for (unsigned i = 0; i < slots.size(); ++i) list.set(i, slots[i]);
}

std::vector<std::byte> frame_bytes(wire::FrameHeader header, std::span<const std::byte> body) {
  std::vector<std::byte> bytes(sizeof header + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(body.begin(), body.end(), bytes.begin() + sizeof header);
  return bytes;
}

std::vector<std::byte> message_bytes(const std::function<void(WireClient::Builder)>& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<wire::Message>());
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return frame_bytes({wire::kFrameMagic, static_cast<std::uint32_t>(bytes.size()), 0, 0},
                     {reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()});
}

}  // namespace kvtier::daemon::testing
