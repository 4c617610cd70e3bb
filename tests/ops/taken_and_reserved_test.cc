// What is taken of the system and what clients may fill are two quantities, each of one name and
// one value wherever the daemon is asked.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/terminal/units.h"
#include "tests/ops/running_daemon.h"

namespace kvtier::daemon::testing {
namespace {

using Json = nlohmann::json;

struct Bytes {
  std::uint64_t taken = 0, reserved = 0;
  friend bool operator==(const Bytes&, const Bytes&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Bytes& bytes) {
    return out << bytes.taken << " taken, " << bytes.reserved << " reserved";
  }
};
using ByTier = std::map<std::string, Bytes>;

class TakenAndReserved : public ::testing::Test {
 protected:
  std::string more() const {
    return disk_config((scratch / "disk").string()) +
           "[device]\ncapacity = '1MiB'\nextent_size = '256KiB'\nhuge_pages = false\n";
  }
  WireClient connect() { return WireClient::greeted((scratch / "s").string()); }
  std::string ctl(const std::string& command) {
    std::FILE* run =
        ::popen((KVTIER_CTL " --socket " + (scratch / "s").string() + " " + command).c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(run)) != EOF;) text += static_cast<char>(c);
    EXPECT_EQ(::pclose(run), 0) << text;
    return text;
  }
  static ByTier of(const Json& tiers) {
    ByTier found;
    for (const Json& tier : tiers)
      found[tier["tier"]] = {tier["taken_bytes"], tier["reserved_bytes"]};
    return found;
  }

  Scratch scratch;
  RunningDaemon daemon{scratch, more()};
};

TEST_F(TakenAndReserved, are_the_same_over_the_wire_in_json_in_metrics_and_in_top) {
  const Namespace ns = small_namespace("m");
  auto client = connect();
  const auto handle = client.open(ns);
  for (const auto& block : prefix_of(id_of(ns), 4, 1)) ASSERT_TRUE(client.put(handle, ns, block));
  ASSERT_TRUE(client.flush());
  ASSERT_EQ(client.reserve(handle, 5).size(), 5U);
  ASSERT_EQ(client.reserve(handle, 2, Tier::device).size(), 2U);
  {
    auto ends = connect();
    ASSERT_EQ(ends.reserve(ends.open(ns), 3).size(), 3U);
  }

  ByTier wire;
  Bytes gpu, disk;
  std::uint64_t quarantined = 0;
  while (quarantined != 3) {
    ASSERT_TRUE(client.request(
        [](WireClient::Builder m) { m.setStatus(); },
        [&](WireClient::Reader m) {
          const auto status = m.getStatusReply();
          quarantined = status.getQuarantinedSlots();
          for (const auto tier : status.getTiers()) {
            wire[name(static_cast<Tier>(tier.getTier()))] = {tier.getTakenBytes(),
                                                             tier.getReservedBytes()};
          }
          gpu = {status.getGpus()[0].getTakenBytes(), status.getGpus()[0].getReservedBytes()};
          disk = {status.getDisks()[0].getTakenBytes(), 0};
        }));
  }
  const std::uint64_t slot = RecordLayout::of(ns).record_bytes;
  EXPECT_EQ(wire["host"], (Bytes{1 << 20, (5 + 3) * slot}));
  EXPECT_EQ(wire["device"], (Bytes{1 << 18, 2 * slot}));
  EXPECT_EQ(wire["disk"], (Bytes{1 << 20, 0}));
  EXPECT_EQ(gpu, wire["device"]);
  EXPECT_EQ(disk, wire["disk"]);

  const Metrics metrics = daemon.metrics();
  const Json served = Json::parse(daemon.get("/status").body);
  const Json status = Json::parse(ctl("status --json"));
  const Json top = Json::parse(ctl("top --once --json --interval 0.1"));
  for (const Json* json : {&served, &status, &top}) {
    EXPECT_EQ(of((*json)["tiers"]), wire);
    EXPECT_EQ((*json)["gpus"][0]["taken_bytes"], gpu.taken);
    EXPECT_EQ((*json)["gpus"][0]["reserved_bytes"], gpu.reserved);
    EXPECT_EQ((*json)["disks"][0]["taken_bytes"], disk.taken);
    EXPECT_FALSE((*json)["disks"][0].contains("reserved_bytes"));
  }
  const std::string text = ctl("status");
  for (const auto& [tier, bytes] : wire) {
    const std::string label = "tier=\"" + tier + "\"";
    EXPECT_EQ(sum_of(metrics, "kvtier_tier_taken_bytes", label), static_cast<double>(bytes.taken));
    EXPECT_EQ(sum_of(metrics, "kvtier_tier_reserved_bytes", label),
              static_cast<double>(bytes.reserved));
    const auto line = text.find("\n" + tier + " ");
    ASSERT_NE(line, std::string::npos) << text;
    std::istringstream words(text.substr(line, text.find('\n', line + 1) - line));
    std::string word, state, used, reserved, taken, unit;
    words >> word >> state >> used >> unit >> reserved >> unit;
    std::string reserved_unit = unit;
    words >> taken >> unit;
    EXPECT_EQ(reserved + " " + reserved_unit, ctl::human_bytes(bytes.reserved)) << text;
    EXPECT_EQ(taken + " " + unit, ctl::human_bytes(bytes.taken)) << text;
  }
  EXPECT_EQ(sum_of(metrics, "kvtier_gpu_taken_bytes"), static_cast<double>(gpu.taken));
  EXPECT_EQ(sum_of(metrics, "kvtier_gpu_reserved_bytes"), static_cast<double>(gpu.reserved));
  EXPECT_EQ(sum_of(metrics, "kvtier_disk_taken_bytes"), static_cast<double>(disk.taken));
}

}  // namespace
}  // namespace kvtier::daemon::testing
