// One session of a hostile client, and what it knows of itself: the namespaces it has opened, the
// slots it holds, the memory it was given. So most of what it asks makes sense, and the rest misses
// by little.
#pragma once

#include <capnp/message.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/protocol/hostile/mutate.h"
#include "tests/protocol/hostile/seen_memory.h"
#include "tests/protocol/hostile/universe.h"
#include "tests/protocol/raw_connection.h"
#include "tests/protocol/tally.h"

namespace kvtier::protocol {

struct Who {
  const char* kind;
  uid_t user = kWriter;
  std::uint8_t pool = kSharedPool;
  bool reader = false;  // the daemon lets it do no more
  bool administrator = false;
};

class HostileSession {
 public:
  using Builder = wire::Message::Builder;
  using Reader = wire::Message::Reader;
  using Fill = std::function<void(Builder)>;
  // How a message goes out.
  enum class Manner { whole, mutated, broken_header, truncated, trickled, descriptors };

  HostileSession(const Who& who, const Universe& universe, Tally& tally, Random& random);

  bool connect(const std::string& socket);
  bool connected() const noexcept { return connection_.has_value(); }
  bool greeted() const noexcept { return greeted_; }
  void leave();  // with all that it holds
  void half_close();
  // Takes what has come; waits for something for at most `wait_ms`.
  void take(int wait_ms);
  void set_manner(Manner manner) noexcept { manner_ = manner; }
  SeenMemory& memory() noexcept { return memory_; }
  std::vector<std::uint64_t> own_slots() const;
  bool waits() const noexcept { return !asked_.empty(); }
  std::size_t namespaces() const noexcept { return opened_.size(); }

  // One message each.
  void hello();
  void open_namespace();
  void lease();
  void release();
  void release_partly();
  void reserve();
  void commit();
  void abandon();
  void let_go();
  void report();
  void flush();
  void status();
  void list();
  void drop();
  void scrub();
  void set_quota();
  void inspect();
  void pin();
  void unpin();
  void invalidate();
  void sessions();
  void wrong_way();    // what only a daemon says
  void hollow_list();  // a list of more elements than its frame has bytes
  // Many of one kind, whose answers nobody takes.
  void flood();

 private:
  struct Opened {
    std::uint32_t handle = 0;
    std::size_t ns = 0;
  };
  struct Held {
    std::uint64_t slot = 0;
    std::size_t ns = 0;
    Tier tier = Tier::host;
  };
  struct Asked {
    wire::Message::Which what = wire::Message::ERROR;
    std::size_t ns = 0;
    std::uint32_t count = 0;
    Tier tier = Tier::host;
  };

  // Sends it with a fresh id, or an odd one.
  void ask(const Fill& fill) { ask(fill, Asked()); }
  void ask(const Fill& fill, Asked asked);
  void tell(const Fill& fill);
  void deliver(const Fill& fill, std::uint64_t id);
  void deliver_as(Manner manner, Bytes frame);
  void send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  void send_with_descriptors(const Bytes& frame);

  void take_message(Reader message, wire::Frame& frame);
  void take_event(Reader message, wire::Frame& frame);
  void take_answer(Reader message, const Asked& asked);
  void take_welcome(Reader message, wire::Frame& frame);
  void take_slots(capnp::List<std::uint64_t>::Reader slots, const Asked& asked);
  void named(std::uint64_t slot, const char* where);

  Opened pick_opened();
  std::optional<Key> pick_key();
  void fill_filter(wire::NamespaceFilter::Builder filter);
  void fill_selection(wire::Selection::Builder selection);
  void fill_block(wire::Commit::Block::Builder out, const TestBlock& block, std::size_t ns);
  std::uint64_t slot_to_name();
  std::uint64_t lease_to_name();

  const Who& who_;
  const Universe& universe_;
  Tally& tally_;
  Random& random_;
  std::optional<RawConnection> connection_;
  SeenMemory memory_;
  Manner manner_ = Manner::whole;
  bool greeted_ = false, read_only_ = false;
  // It knows what it has said: nothing was garbled, and it has not claimed what it has not.
  bool certain_ = true;
  std::uint64_t last_id_ = 0, client_ = 0;
  std::map<std::uint64_t, Asked> asked_;
  std::uint32_t silent_ = 0;  // times that it waited for nothing
  std::vector<Opened> opened_;
  std::vector<Held> held_;
  std::vector<std::uint64_t> spent_, leases_;
  std::vector<std::byte> lineage_;
  std::vector<std::uint32_t> earlier_extents_;
};

}  // namespace kvtier::protocol
