// A daemon that lives in the test: real frames on a real socket, real shared memory, and a script.
// Every public member is for the test's thread.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/wire/directory.h"
#include "core/wire/frame.h"
#include "kvtier/client.h"

namespace kvtier::test {

using Which = wire::Message::Which;

inline constexpr std::uint32_t kSlots = 128;  // in each of the two extents

class FakeDaemon {
 public:
  static constexpr std::uint32_t kHandle = 7;  // of every namespace

  struct CommittedBlock {
    Key key, parent;
    std::uint32_t block_index = 0;
    std::vector<Token> tokens;
    std::vector<std::uint64_t> slots;
    std::uint32_t prompt_blocks = 0, answer_tokens = 0;
  };
  // What it does, and what it saw. Guarded: read and changed through with().
  struct State {
    std::uint32_t version = wire::kProtocolVersion;
    std::uint32_t lease_ms = 60'000;
    std::uint8_t extent_kind = 0;  // said of each extent's descriptor
    std::uint8_t device = 0;       // the number that clients' GPU is said to have
    bool read_only = false;   // what it gives clients, and descriptors that are for reading alone
    std::set<Which> ignored;  // requests that get no answer
    std::set<Which> fatal;    // requests that end the connection
    std::map<Which, Error> refused;
    std::array<std::uint32_t, 2> slots_left{};  // to grant, by tier
    std::uint32_t slots_more = 0;               // than were asked for, in every grant
    std::map<Key, std::uint64_t> blocks;        // leasable; slot 0: on disk
    std::string lineage;                        // of its extents, 16 bytes; empty: it says none
    std::set<std::uint32_t> known_extents;      // what the last hello said of this lineage
    int extents_sent = 0;
    std::set<std::uint32_t>
        unmappable;  // extents whose memory comes so that nobody can write to it
    std::function<void(std::vector<std::byte>&)> mangle_hello;  // the bytes sent instead of welcome

    std::map<Which, int> seen;
    std::vector<std::uint64_t> released, abandoned;
    std::vector<std::uint64_t> returned;  // numbers of recalls
    std::size_t abandoned_before_returned = 0;
    std::map<std::uint64_t, std::uint32_t> usable;  // of leases released partly
    std::vector<Key> bad_keys;
    std::size_t released_before_bad_keys = 0;  // leases
    bool read_only_asked = false;
    std::vector<CommittedBlock> committed;
    std::uint64_t last_lease = 0;
    std::uint64_t reported_misses = 0, asked_lookups = 0, reported_drops = 0, reported_faults = 0;
    int connections = 0;
    int open_connections = 0;
  };

  explicit FakeDaemon(std::uint64_t slot_bytes);
  ~FakeDaemon();

  std::string socket() const { return path_; }
  template <class Use>
  auto with(Use&& use) {
    const std::lock_guard lock(mutex_);
    return use(state_);
  }
  // Waits until `holds(state)`. False if that takes longer than any test should.
  bool eventually(const std::function<bool(const State&)>& holds);

  // Ends all connections; new ones are welcome.
  void hang_up();
  // Answers what was ignored until now.
  void answer_ignored();
  void send_ready(std::uint64_t lease, std::vector<std::uint32_t> blocks,
                  std::vector<std::uint64_t> slots);
  void send_namespace_closed();
  // Asks for the idle slots in these extents, and for all but `keep` of the namespace's of a tier.
  void send_recall(std::uint64_t number, std::vector<std::uint32_t> extents,
                   std::optional<std::pair<Tier, std::uint32_t>> keep = {});
  void send_bytes(std::span<const std::byte> bytes);

  std::uint64_t slot_name(Tier tier, std::uint32_t index) const;
  std::span<std::byte> slot(std::uint64_t name);
  // Puts a block into the directory and, with a slot, makes it leasable there.
  void publish(const Key& key, TierSet tiers, std::uint64_t slot);

 private:
  struct Peer {
    UniqueFd fd;
    wire::FrameReader reader;
    wire::FrameWriter writer{64U << 20};
    bool extents_sent = false;
    bool ended = false;
    std::vector<wire::Frame> unanswered;
  };

  void run();
  void serve(Peer& peer);
  void handle(Peer& peer, wire::Frame& frame, bool again);
  void dispatch(Peer& peer, wire::Message::Reader message);
  void welcome(Peer& peer, std::uint64_t id, wire::Hello::Reader hello);
  void send_extents(Peer& peer);
  void lease(Peer& peer, std::uint64_t id, wire::LeaseRequest::Reader request);
  void reserve(Peer& peer, std::uint64_t id, wire::ReserveRequest::Reader request);
  void commit(Peer& peer, std::uint64_t id, wire::Commit::Reader commit);
  void take_report(wire::Report::Reader report);
  void reply(Peer& peer, std::uint64_t id, const std::function<void(wire::Message::Builder)>& fill,
             UniqueFd descriptor = {});

  const std::uint64_t slot_bytes_;
  std::filesystem::path folder_;
  std::string path_;
  UniqueFd listener_, wake_;
  std::array<UniqueFd, 2> extent_fds_;
  std::array<Mapping, 2> extents_;
  void enter(const Key& key, TierSet tiers);
  DirectoryWriter directory_;
  std::array<std::uint32_t, 2> next_slot_{kSlots / 2, kSlots / 2};  // the lower half is the test's
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_;
  std::vector<std::unique_ptr<Peer>> peers_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvtier::test
