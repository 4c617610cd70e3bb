// Every list of every message that a client may send has a bound, and is charged for before
// anything goes through it.
#include <capnp/dynamic.h>
#include <capnp/schema.h>

#include "daemon/peers/rights.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Path = std::vector<capnp::StructSchema::Field>;

bool is_list(const capnp::Type& type) {
  return type.isList();
}

// The ways through a message to each list in it, through the first element of lists on the way.
void find_lists(const Path& so_far, const capnp::Type& type, std::vector<Path>& found) {
  capnp::Type in = type;
  if (is_list(in)) {
    found.push_back(so_far);
    in = in.asList().getElementType();
  }
  if (!in.isStruct()) return;
  for (const auto field : in.asStruct().getFields()) {
    Path next = so_far;
    next.push_back(field);
    find_lists(next, field.getType(), found);
  }
}

std::string name_of(const Path& path) {
  std::string name;
  for (const auto field : path) name += std::string(field.getProto().getName().cStr()) + ".";
  return name;
}

// Gives the last list of the path so many elements.
void make_long(capnp::DynamicStruct::Builder at, const Path& path, unsigned elements) {
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    if (is_list(path[i].getType())) {
      at = at.init(path[i], 1).as<capnp::DynamicList>()[0].as<capnp::DynamicStruct>();
    } else {
      at = at.init(path[i]).as<capnp::DynamicStruct>();
    }
  }
  at.init(path.back(), elements);
}

// The message with one element in the list made one with so many that take no room: the list's
// pointer says "no words", and its tag that there are `elements` of none.
std::vector<std::byte> with_elements_of_no_size(std::vector<std::byte> frame,
                                                std::uint32_t elements) {
  const std::size_t body = sizeof(wire::FrameHeader) + 8;
  for (std::size_t at = frame.size() - 8; at >= body; at -= 8) {
    std::uint64_t pointer;
    std::memcpy(&pointer, frame.data() + at, sizeof pointer);
    if ((pointer & 3) != 1 || (pointer >> 32 & 7) != 7) continue;
    const auto offset = static_cast<std::int32_t>(pointer) >> 2;
    const std::size_t tag = at + 8 + static_cast<std::size_t>(offset) * 8;
    pointer &= 0x7'FFFF'FFFFULL;
    const std::uint64_t none = std::uint64_t{elements} << 2;
    std::memcpy(frame.data() + at, &pointer, sizeof pointer);
    std::memcpy(frame.data() + tag, &none, sizeof none);
    return frame;
  }
  ADD_FAILURE() << "no list of structs";
  return frame;
}

std::vector<std::pair<capnp::StructSchema::Field, std::vector<Path>>> messages_with_lists() {
  std::vector<std::pair<capnp::StructSchema::Field, std::vector<Path>>> all;
  const auto schema = capnp::Schema::from<wire::Message>();
  for (const auto field : schema.getUnionFields()) {
    const auto which = static_cast<wire::Message::Which>(field.getProto().getDiscriminantValue());
    if (rule_of(which).right == Right::none) continue;
    std::vector<Path> lists;
    find_lists({field}, field.getType(), lists);
    if (!lists.empty()) all.emplace_back(field, std::move(lists));
  }
  return all;
}

Result<double> cost_of_frame(std::span<const std::byte> frame) {
  const auto body = frame.subspan(sizeof(wire::FrameHeader));
  std::vector<capnp::word> words(body.size() / sizeof(capnp::word));
  std::memcpy(words.data(), body.data(), body.size());
  const wire::Frame read(std::move(words), {});
  Result<double> cost = 0.0;
  const auto good = read.read([&](wire::Message::Reader m) { cost = cost_of(m, read.bytes()); });
  return good ? cost : Result<double>(good.error());
}

TEST(MessageLists, every_list_of_every_message_has_a_bound) {
  std::size_t lists = 0;
  for (const auto& [message, paths] : messages_with_lists()) {
    for (const Path& path : paths) {
      constexpr unsigned kTooMany = 70'000;  // more than any list may have
      constexpr unsigned kOfStructs = 20'000;
      const bool of_structs = path.back().getType().asList().getElementType().isStruct();
      const auto frame = [&](unsigned elements) {
        return message_bytes([&](Builder m) { make_long(capnp::toDynamic(m), path, elements); });
      };
      EXPECT_TRUE(cost_of_frame(frame(1))) << name_of(path);
      EXPECT_FALSE(cost_of_frame(frame(of_structs ? kOfStructs : kTooMany))) << name_of(path);
      ++lists;
    }
  }
  EXPECT_GE(lists, 11U) << "the walk over the schema finds them";
}

// Millions of elements in 72 bytes, at the cost of one request.
TEST(MessageLists, elements_that_take_no_room_are_no_elements_of_a_message) {
  std::size_t lists = 0;
  for (const auto& [message, paths] : messages_with_lists()) {
    for (const Path& path : paths) {
      if (!path.back().getType().asList().getElementType().isStruct()) continue;
      const auto frame = message_bytes([&](Builder m) { make_long(capnp::toDynamic(m), path, 1); });
      for (const std::uint32_t elements : {64U, 4096U, 1U << 20, (1U << 29) - 1})
        EXPECT_FALSE(cost_of_frame(with_elements_of_no_size(frame, elements))) << name_of(path);
      ++lists;
    }
  }
  EXPECT_GE(lists, 4U);
}

TEST(MessageLists, what_a_message_costs_grows_with_what_is_in_it) {
  const auto cost = [](const std::function<void(Builder)>& fill) {
    return cost_of_frame(message_bytes(fill)).value();
  };
  EXPECT_EQ(cost([](Builder m) { m.initRelease(1); }), 1);
  EXPECT_EQ(cost([](Builder m) { m.initRelease(4096); }), 4096);
  EXPECT_EQ(cost([](Builder m) { m.initReleasePartly(4096); }), 4096);
  EXPECT_EQ(cost([](Builder m) { m.initAbandon(400); }), 101);
  EXPECT_EQ(cost([](Builder m) { m.initCommit().initBlocks(64); }), 17);
  EXPECT_EQ(cost([](Builder m) { m.initReport().initBadKeys(20); }), 2001);
  EXPECT_EQ(cost([](Builder m) { m.initReserve().setCount(1024); }), 74);
  EXPECT_EQ(cost([](Builder m) { m.initLease().initKeys(16 * 6400); }), 101);
  EXPECT_EQ(cost([](Builder m) { m.initHello().initExtents(160); }), 30);
}

// A read-only client could keep the control thread for half a minute.
class HostileListsTest : public ServerTest {};

TEST_F(HostileListsTest, a_list_of_a_million_nothings_ends_its_own_session_at_once) {
  WireClient here = client();
  const auto partly = message_bytes([](Builder m) { m.initReleasePartly(1); });
  for (const std::uint32_t elements : {1000U, 200'000U, 1U << 20, (1U << 29) - 1}) {
    WireClient evil = WireClient::greeted(socket(), true);
    ASSERT_TRUE(evil.send_raw(with_elements_of_no_size(partly, elements)));
    EXPECT_TRUE(evil.is_closed()) << elements;
    ASSERT_TRUE(here.status());
  }
  EXPECT_EQ(here.status()->frame_errors, 4U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
