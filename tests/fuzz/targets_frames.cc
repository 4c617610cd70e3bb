// Messages: a real daemon on a thread of this process, and sessions that say anything.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "core/base/check.h"
#include "daemon/server/server.h"
#include "tests/daemon/support/wire_client.h"
#include "tests/fuzz/targets.h"

namespace kvtier::fuzz {
namespace {

using daemon::testing::frame_bytes;
using daemon::testing::message_bytes;
using daemon::testing::prefix_of;
using daemon::testing::small_namespace;
using daemon::testing::WireClient;
using Builder = WireClient::Builder;

class Daemon {
 public:
  Daemon() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-fuzz-XXXXXX").string();
    KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    config_.socket = folder_ / "s";
    config_.index_blocks_max = 64;  // so that it is full soon
    config_.host = {1U << 20, 256U << 10, false, false};
    config_.device = {{512U << 10, 128U << 10, false, false}, daemon::DeviceBackend::memory, {0}};
    daemon::Config::Tenant apart;
    apart.name = "apart";
    apart.salts = {"apart"};
    apart.quota[1] = daemon::Config::Amount{25, true};
    apart.isolated = true;
    config_.tenants = {apart};
    server_ = std::make_unique<daemon::Server>(io_, config_, passed_);
    KVTIER_CHECK(server_->start().has_value());
    thread_ = std::thread([this] { io_.run(); });
    bystander_ = std::make_unique<WireClient>(WireClient::greeted(socket()));
  }
  ~Daemon() {
    io_.stop();
    thread_.join();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string socket() const { return config_.socket.string(); }
  // Somebody else, who has done no wrong, is served.
  void check() { KVTIER_CHECK(bystander_->status().has_value()); }

 private:
  std::filesystem::path folder_;
  daemon::Config config_;
  boost::asio::io_context io_{1};
  daemon::PassedDescriptors passed_;
  std::unique_ptr<daemon::Server> server_;
  std::thread thread_;
  std::unique_ptr<WireClient> bystander_;
};

Daemon& running() {
  static Daemon daemon;
  return daemon;
}

Namespace namespace_of(const std::string& salt, bool wide = false) {
  Namespace ns = small_namespace("m", wide);
  ns.tenant = salt;
  return ns;
}

// [flags][length u16, body]... Flags: 1, greeted, with two namespaces open; 2, the rest goes out as
// it is; 4, read-only. Bodies become frames.
void run_frames(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto flags = std::to_integer<unsigned>(bytes[0]);
  bytes = bytes.subspan(1);
  WireClient client = (flags & 1) != 0 ? WireClient::greeted(running().socket(), (flags & 4) != 0)
                                       : WireClient(running().socket());
  if ((flags & 1) != 0) {
    client.try_open(namespace_of(""));
    client.try_open(namespace_of("apart", true));
  }
  while ((flags & 2) == 0 && bytes.size() >= 2) {
    std::uint16_t length;
    std::memcpy(&length, bytes.data(), sizeof length);
    const std::size_t taken = std::min<std::size_t>(length, bytes.size() - 2);
    std::vector<std::byte> body(bytes.begin() + 2,
                                bytes.begin() + 2 + static_cast<std::ptrdiff_t>(taken));
    body.resize((body.size() + 7) / 8 * 8);
    bytes = bytes.subspan(2 + taken);
    const auto size = static_cast<std::uint32_t>(body.size());
    if (size != 0 && !client.send_raw(frame_bytes({wire::kFrameMagic, size, 0, 0}, body))) break;
  }
  if ((flags & 2) != 0) client.send_raw(bytes);
  client.finish_sending();
  KVTIER_CHECK(client.is_closed());
  static unsigned runs = 0;
  if (++runs % 32 == 0) running().check();
}

Bytes session_of(unsigned flags, const std::vector<std::function<void(Builder)>>& messages) {
  Bytes bytes{std::byte(flags)};
  for (const auto& fill : messages) {
    const auto framed = message_bytes([&](Builder m) {
      m.setId(5);
      fill(m);
    });
    const auto body = std::span(framed).subspan(sizeof(wire::FrameHeader));
    const auto length = static_cast<std::uint16_t>(body.size());
    const auto raw = std::as_bytes(std::span(&length, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    bytes.insert(bytes.end(), body.begin(), body.end());
  }
  return bytes;
}

std::vector<Bytes> frame_seeds() {
  static const auto prefix = prefix_of(id_of(namespace_of("")), 2, 1);
  const auto data = [](const auto& of) {
    return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(&of), sizeof of);
  };
  const auto encoded = encode(namespace_of("other"));
  const auto hello = [](Builder m) { m.initHello().setVersion(wire::kProtocolVersion); };
  const auto lease = [](Builder m) {
    m.initLease().setKeys({reinterpret_cast<const kj::byte*>(&prefix[0].identity.key), 16});
  };
  const auto reserve = [](Builder m) {
    auto r = m.initReserve();
    r.setTier(1);
    r.setCount(3);
  };
  const auto commit = [data](Builder m) {
    auto blocks = m.initCommit().initBlocks(2);
    for (unsigned i = 0; i < 2; ++i) {
      blocks[i].setKey(data(prefix[i].identity.key));
      blocks[i].setParent(data(prefix[i].identity.parent));
      blocks[i].setBlockIndex(i);
      blocks[i].setProof({reinterpret_cast<const kj::byte*>(prefix[i].tokens.data()),
                          prefix[i].tokens.size() * sizeof(Token)});
      blocks[i].initSlots(1).set(0, 1ULL << 32 | i);
    }
  };
  const auto open = [encoded](Builder m) {
    m.setOpenNamespace({reinterpret_cast<const kj::byte*>(encoded.data()), encoded.size()});
  };
  return {
      session_of(0, {hello, open, [](Builder m) { m.setStatus(); }}),
      session_of(1, {reserve, commit, lease, [](Builder m) { m.initRelease(2).set(0, 1); }}),
      session_of(1, {reserve, [](Builder m) { m.initAbandon(2).set(0, 1ULL << 32); }}),
      session_of(
          1, {[data](Builder m) {
                auto report = m.initReport();
                report.initMissed(1)[0].setBlocks(3);
                report.initBadKeys(1).set(0, data(prefix[0].identity.key));
              },
              [](Builder m) { m.initList().setBlocksMax(10); }, [](Builder m) { m.setFlush(); }}),
      session_of(1, {[](Builder m) { m.initDrop().setTiers(2); },
                     [](Builder m) { m.initScrub().setStart(true); },
                     [](Builder m) {
                       auto quota = m.initSetQuota();
                       quota.setTenant("apart");
                       quota.setTier(1);
                       quota.setQuotaBytes(1U << 18);
                     }}),
      session_of(5, {lease, reserve, commit}),
  };
}

}  // namespace

Target frames() {
  return {"frames", run_frames, frame_seeds};
}

}  // namespace kvtier::fuzz
