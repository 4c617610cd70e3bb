// The parts of the session's thread, wired as the session wires them, for tests of one part at a
// time. The test is the session's thread, and the daemon at the other end of a socket pair.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "client/session/thread/commits.h"
#include "client/session/thread/flushes.h"
#include "client/session/thread/leases.h"
#include "client/session/thread/reports.h"
#include "client/session/thread/slot_exchange.h"
#include "tests/client/fixture.h"

namespace kvtier::session {

using Which = wire::Message::Which;

class SessionParts : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kHandle = 7;
  static constexpr std::uint32_t kExtent = 3;
  static constexpr std::uint32_t kExtentSlots = 16;

  SessionParts() { begin(); }

  // A connection, from connecting to welcome.
  void begin() {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    conversation.begin(UniqueFd(ends[0]), Clock::now());
    daemon = UniqueFd(ends[1]);
    heard = wire::FrameReader();
    auto view = DirectoryView::map(directory.fd(), directory.bytes(), 0);
    ASSERT_TRUE(view);
    ASSERT_TRUE(conversation.welcomed(std::move(*view), std::chrono::seconds(60), Clock::now()));
    right = std::make_shared<int>(0);
    slots.begin(right);
  }
  // As the session does when the connection ends.
  void end(const Error& why = make_error(Errc::unavailable, "gone")) {
    conversation.connection()->end();
    slots.end();
    conversation.hang_up(why);
    flushes.end(why);
    leases.end();
    namespaces.end(why);
    conversation.forget();
    daemon.reset();
    right.reset();
  }

  // What was said since, message by message.
  using Hear = std::function<void(wire::Message::Reader)>;
  void hear(const Hear& use) {
    conversation.send();
    std::vector<wire::Frame> frames;
    [[maybe_unused]] const auto received = heard.receive(daemon.get(), frames);
    for (const auto& frame : frames) ASSERT_TRUE(frame.read(use));
  }
  std::vector<Which> said() {
    std::vector<Which> all;
    hear([&](wire::Message::Reader m) {
      all.push_back(m.which());
      last_id = m.getId();
    });
    return all;
  }
  // From the daemon; the answer to what was heard last, or an event where `id` is 0. What a handler
  // says to it is the result.
  using Fill = std::function<void(wire::Message::Builder)>;
  Result<void> answer(const Fill& fill) { return send(last_id, fill); }
  Result<void> event(const Fill& fill, UniqueFd descriptor = {}) {
    return send(0, fill, std::move(descriptor));
  }

  // One that is open, in use, and with slots in an extent that is mapped.
  Namespaces::Entry opened() {
    const auto ns = namespaces.find_or_add(test::small_namespace(), 8).first;
    ns->users = 1;
    namespaces.open(ns);
    EXPECT_EQ(said(), std::vector{Which::OPEN_NAMESPACE});
    EXPECT_TRUE(answer([](wire::Message::Builder m) { m.setOpened(kHandle); }));
    return ns;
  }
  Result<void> map_extent(std::uint32_t id = kExtent, Tier tier = Tier::host) {
    const std::uint64_t slot = RecordLayout::of(test::small_namespace()).record_bytes;
    UniqueFd memory = make_memfd("extent", kExtentSlots * slot).value();
    return event(
        [&](wire::Message::Builder m) {
          auto extent = m.initExtent();
          extent.setId(id);
          extent.setTier(static_cast<std::uint8_t>(tier));
          extent.setBytes(kExtentSlots * slot);
          extent.setSlotBytes(slot);
        },
        std::move(memory));
  }
  static std::uint64_t slot_name(std::uint32_t slot, std::uint32_t extent = kExtent) {
    return std::uint64_t{extent} << 32 | slot;
  }
  // Asks for slots of the host tier and is given these.
  Result<void> reserve(const Namespaces::Entry& ns, const std::vector<std::uint64_t>& names) {
    ns->pool(Tier::host).expect();
    slots.ask(ns, Tier::host, static_cast<std::uint32_t>(names.size()));
    EXPECT_EQ(said(), std::vector{Which::RESERVE});
    return answer([&](wire::Message::Builder m) {
      auto list = m.initReserved().initSlots(static_cast<unsigned>(names.size()));
      for (unsigned i = 0; i < list.size(); ++i) list.set(i, names[i]);
    });
  }
  std::vector<std::uint64_t> abandoned() {
    std::vector<std::uint64_t> names;
    hear([&](wire::Message::Reader m) {
      if (m.which() != Which::ABANDON) return;
      for (const std::uint64_t name : m.getAbandon()) names.push_back(name);
    });
    return names;
  }

  DirectoryWriter directory = DirectoryWriter::create(16, std::array<std::byte, 16>{}).value();
  UniqueFd daemon;
  wire::FrameReader heard;
  wire::FrameWriter to_client{64U << 20};
  std::uint64_t last_id = 0;
  int slots_changed = 0, namespaces_opened = 0;
  Counters counters;
  std::shared_ptr<int> right;

  Conversation conversation{"/run/a.sock", std::chrono::milliseconds(500)};
  MappedExtents extents{nullptr};
  Namespaces namespaces{conversation, [this](const auto&) { ++namespaces_opened; },
                        [this] { ++slots_changed; }};
  Leases leases{conversation, extents};
  SlotExchange slots{conversation, extents, namespaces, [this] { ++slots_changed; }};
  Flushes flushes{conversation, namespaces};
  Commits commits{conversation, counters, [this] { ++slots_changed; }};
  Reports reports{conversation, namespaces, counters};

 private:
  Result<void> send(std::uint64_t id, const Fill& fill, UniqueFd descriptor = {}) {
    capnp::MallocMessageBuilder message;
    auto root = message.initRoot<wire::Message>();
    root.setId(id);
    fill(root);
    EXPECT_TRUE(to_client.push(message, std::move(descriptor)));
    EXPECT_TRUE(to_client.send(daemon.get()));
    std::vector<wire::Frame> frames;
    if (auto good = conversation.receive(frames); !good) return good;
    Result<void> handled;
    for (auto& frame : frames) {
      EXPECT_TRUE(frame.read([&](wire::Message::Reader m) { handled = take(frame, m); }));
    }
    return handled;
  }
  Result<void> take(wire::Frame& frame, wire::Message::Reader m) {
    if (m.getId() != 0) {
      const auto waiting = conversation.take_waiting(m.getId());
      if (!waiting) return make_error(Errc::malformed, "nobody waits for it");
      return m.isError() ? (*waiting)(error_of(m.getError())) : (*waiting)(m);
    }
    switch (m.which()) {
      case Which::EXTENT:
        return extents.map(frame, m.getExtent(), Mapping::Access::read_write);
      case Which::READY:
        return leases.land(m.getReady());
      case Which::RECALL:
        slots.recall(m.getRecall());
        return {};
      default:
        return make_error(Errc::malformed, "no such event in these tests");
    }
  }
};

}  // namespace kvtier::session
