// A client that says exactly what the test wants, on a real socket.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/wire/frame.h"
#include "kvtier/tier.h"
#include "tests/daemon/support/records.h"

namespace kvtier::daemon::testing {

class WireClient {
 public:
  using Builder = wire::Message::Builder;
  using Reader = wire::Message::Reader;

  // Tries until somebody listens.
  explicit WireClient(const std::string& socket);
  // As above, greeted and welcomed.
  static WireClient greeted(const std::string& socket, bool read_only = false);

  // False once the peer has closed the connection.
  bool send_raw(std::span<const std::byte> bytes, int descriptor = -1);
  bool send(const std::function<void(Builder)>& fill, std::uint64_t id = 0);
  bool hello(std::uint32_t version = wire::kProtocolVersion);
  void finish_sending();
  void close() { socket_.reset(); }

  // The reply to a request. False if the connection ends first or the reply is an error (see
  // error()).
  bool request(
      const std::function<void(Builder)>& fill,
      const std::function<void(Reader)>& use = [](Reader) {});
  const std::optional<Error>& error() const noexcept { return error_; }
  // Whether the peer closes the connection; what comes before is read.
  bool is_closed();
  std::string why;  // the daemon's last word, if it had one and it was read

  // What a well-behaved client does.
  std::uint32_t open(const Namespace& ns);
  // None if the connection ends first.
  std::optional<std::uint32_t> try_open(const Namespace& ns);
  // The memory of a slot that the daemon has named.
  std::span<std::byte> record(std::uint64_t slot) const;
  std::vector<std::uint64_t> reserve(std::uint32_t ns, std::uint32_t count, Tier tier = Tier::host);
  // Fills a slot of each of these tiers and commits; whether it was taken.
  bool put(std::uint32_t ns, const Namespace& of, const TestBlock& block,
           std::initializer_list<Tier> tiers = {Tier::host});
  std::vector<std::uint64_t> lease(std::uint32_t ns, std::span<const TestBlock> prefix);
  // Leases the prefix, waits for what comes from disk, damages the last block's record if `damage`
  // says so, reports its key and releases. False if that block was not granted.
  bool report_bad(std::uint32_t ns, std::span<const TestBlock> prefix, bool damage);
  void report(const Key& key);
  // Leases, waits for what comes from disk, and releases. Of each block granted: whether its bytes
  // came (a failed read is none) and are right.
  enum class Seen { right, wrong, failed };
  std::vector<Seen> look(std::uint32_t ns, const Namespace& of, std::span<const TestBlock> prefix);
  bool flush() {
    return request([](Builder m) { m.setFlush(); });
  }
  // The slots of a ready event, in the order of the lease's blocks, once all have come.
  bool wait_ready(std::size_t blocks);
  std::map<std::uint32_t, std::uint64_t> ready;
  std::vector<std::uint32_t> closed;  // handles of namespaces that were invalidated
  struct Recall {
    struct Keep {
      std::uint32_t ns, slots;
    };
    std::uint64_t number = 0;
    std::vector<std::uint32_t> extents;
    std::vector<Keep> keeps;
  };
  std::size_t recalls = 0;
  std::function<void(const Recall&)> on_recall;  // without it nobody answers

  struct Status {
    std::uint64_t frame_errors, sessions, leases, reserved, quarantined;
    std::uint64_t faults = 0, denied = 0, turned_away = 0, refused_reports = 0;
  };
  std::optional<Status> status();
  // The descriptor that came with an extent, as it came.
  int extent_fd(std::uint64_t slot) const {
    return extents_.at(static_cast<std::uint32_t>(slot >> 32)).fd.get();
  }
  int directory_fd() const { return directory_.get(); }
  std::size_t extents() const noexcept { return extents_.size(); }
  bool read_only() const noexcept { return read_only_; }

 private:
  std::optional<wire::Frame> next();
  void on_event(Reader message, wire::Frame& frame);

  UniqueFd socket_;
  wire::FrameReader reader_;
  std::deque<wire::Frame> frames_;
  std::uint64_t last_id_ = 0;
  std::optional<Error> error_;
  bool read_only_ = false;
  UniqueFd directory_;
  std::uint64_t lease_ = 0;  // the last one of lease()
  struct Extent {
    UniqueFd fd;
    Mapping memory;
    std::uint64_t slot_bytes;
  };
  std::map<std::uint32_t, Extent> extents_;
};

// The commit of one block that lies in these slots.
void fill_commit(WireClient::Builder message, std::uint32_t ns, const TestBlock& block,
                 std::span<const std::uint64_t> slots);
// The bytes of a frame with this header and body.
std::vector<std::byte> frame_bytes(wire::FrameHeader header, std::span<const std::byte> body = {});
std::vector<std::byte> message_bytes(const std::function<void(WireClient::Builder)>& fill);

}  // namespace kvtier::daemon::testing
