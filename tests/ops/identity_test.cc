// device + host + disk + miss = looked up, at every scrape, whatever clients do and however they
// end: a hundred thousand random operations against a real server, with a model that knows what
// each client asked for and what came of it.
#include <random>

#include "tests/daemon/support/damage.h"
#include "tests/ops/running_daemon.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

capnp::Data::Reader data(const void* bytes, std::size_t count) {
  return {static_cast<const kj::byte*>(bytes), count};
}

// What was looked up and where it should have been counted.
struct Model {
  std::uint64_t looked_up = 0;
  std::array<std::uint64_t, kTiers> hits{};
  std::uint64_t misses = 0;
  std::uint64_t unsure = 0;  // of disk hits: released while they were on their way
};

struct Leased {
  std::uint64_t id = 0;
  std::vector<Tier> tiers;
  std::vector<bool> landed;
  std::vector<std::uint64_t> slots;  // 0: not landed
  bool waited = true;                // for all that was on its way
};

class Client {
 public:
  Client(const std::string& socket, std::span<const Namespace> namespaces, Model& model)
      : wire_(WireClient::greeted(socket)), namespaces_(namespaces), model_(model) {
    for (const Namespace& ns : namespaces) handles_.push_back(wire_.open(ns));
  }

  WireClient& wire() { return wire_; }
  std::size_t leases() const { return leases_.size(); }

  void put(std::size_t ns, std::span<const TestBlock> prefix) {
    for (const TestBlock& block : prefix) (void)wire_.put(handles_[ns], namespaces_[ns], block);
  }

  // `more`: blocks of the prompt that are not asked for.
  void lease(std::size_t ns, std::span<const TestBlock> prefix, std::uint32_t more, bool wait) {
    const auto keys = keys_of(prefix);
    Leased leased;
    std::vector<std::uint64_t> slots;
    wire_.ready.clear();
    ASSERT_TRUE(wire_.request(
        [&](Builder m) {
          auto l = m.initLease();
          l.setNs(handles_[ns]);
          l.setKeys(data(keys.data(), keys.size() * sizeof(Key)));
          l.setLookedUp(more == 0 ? 0 : static_cast<std::uint32_t>(keys.size()) + more);
        },
        [&](Reader m) {
          leased.id = m.getLeased().getLease();
          for (const auto slot : m.getLeased().getSlots()) slots.push_back(slot);
          for (const auto tier : m.getLeased().getTiers())
            leased.tiers.push_back(static_cast<Tier>(tier));
        }));
    model_.looked_up += keys.size() + more;
    model_.misses += keys.size() + more - slots.size();
    if (leased.id == 0) return;
    const auto pending = static_cast<std::size_t>(std::ranges::count(slots, std::uint64_t{0}));
    leased.waited = wait || pending == 0;
    if (wait) {
      ASSERT_TRUE(wire_.wait_ready(pending));
    }
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      leased.slots.push_back(slots[i] == 0 && wait ? wire_.ready.at(i) : slots[i]);
      leased.landed.push_back(leased.slots.back() != 0);
    }
    leases_.push_back(std::move(leased));
  }

  // Of a lease that `nth` chooses; what comes of `usable` follows from what had landed.
  void release(std::size_t nth, std::optional<std::uint32_t> usable) {
    const std::size_t at = nth % leases_.size();
    const std::uint64_t id = leases_[at].id;
    wire_.send([&](Builder m) {
      if (!usable) return m.initRelease(1).set(0, id);
      auto partly = m.initReleasePartly(1)[0];
      partly.setLease(id);
      partly.setUsable(*usable);
    });
    close(leases_[at], usable.value_or(~0U));
    leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // Of a lease that `nth` chooses the last record that it has in host memory is damaged, reported,
  // and of no use.
  void spoil(std::size_t nth, std::span<const TestBlock> prefix) {
    Leased& leased = leases_[nth % leases_.size()];
    for (std::size_t i = leased.slots.size(); i-- > 0;) {
      if (!leased.landed[i] || leased.tiers[i] == Tier::device) continue;
      wire_.record(leased.slots[i])[0] ^= std::byte{1};
      wire_.report(prefix[i].key());
      return release(nth, static_cast<std::uint32_t>(i));
    }
  }

  void report(std::size_t ns, std::uint64_t missed) {
    wire_.send([&](Builder m) {
      auto list = m.initReport().initMissed(1);
      list[0].setNs(handles_[ns]);
      list[0].setBlocks(missed);
    });
    model_.looked_up += missed;
    model_.misses += missed;
  }

  // Goes away without a word, or with a frame that ends it.
  void die(bool noisily) {
    if (noisily) {
      const std::array<std::byte, 32> noise{};
      wire_.send_raw(noise);
    }
    wire_.close();
    for (const Leased& leased : leases_) close(leased, ~0U);
    leases_.clear();
  }

  bool any_unwaited() const {
    return std::ranges::any_of(leases_, [](const Leased& leased) { return !leased.waited; });
  }
  // All that was sent before has been handled.
  void sync() { ASSERT_TRUE(wire_.status().has_value()); }

 private:
  void close(const Leased& leased, std::uint32_t usable) {
    std::uint32_t served = 0;
    const std::size_t blocks = leased.tiers.size();
    while (served < blocks && served < usable && leased.landed[served])
      ++model_.hits[index_of(leased.tiers[served++])];
    const std::uint64_t left = blocks - served;
    // From the first on that was not waited for, it is a hit of the tier it was in or a miss.
    if (leased.waited) {
      model_.misses += left;
    } else {
      model_.unsure += left;
    }
  }

  WireClient wire_;
  std::span<const Namespace> namespaces_;
  Model& model_;
  std::vector<std::uint32_t> handles_;
  std::vector<Leased> leases_;
};

class IdentityTest : public ::testing::Test {
 protected:
  static constexpr int kOperations = 100'000;
  static constexpr int kWideFrom = kOperations / 20;
  static constexpr std::size_t kClients = 4;

  // Records of two sizes, so that extents and segments change hands.
  const std::vector<Namespace> namespaces{small_namespace("a"), small_namespace("b"),
                                          small_namespace("wide", true)};

  std::string more() const {
    return "[disk]\ndirectory = '" + (scratch / "disk").string() +
           "'\ncapacity = '48MiB'\nsegment_size = '1MiB'\nscrub_mib_per_s = 0\n"
           "[device]\ncapacity = '1MiB'\nextent_size = '256KiB'\nhuge_pages = false\n";
  }

  std::vector<TestBlock> prefix(std::size_t ns) {
    const std::size_t blocks = 1 + random() % 12;
    return prefix_of(id_of(namespaces[ns]), blocks, static_cast<Token>(1000 * (random() % 150)));
  }

  // Some bytes of a record on disk change, as they do on a drive that is wearing out.
  void damage_a_segment() {
    std::vector<std::filesystem::path> files;
    for (const auto& file :
         std::filesystem::recursive_directory_iterator(scratch / "disk" / "segments")) {
      if (file.is_regular_file()) files.push_back(file.path());
    }
    if (files.empty()) return;
    const auto& file = files[random() % files.size()];
    const std::uint64_t at = 4096 + random() % (1000 * 1024);
    damage(file, std::min(at, at / 4096 * 4096 + 4089), std::string_view("damaged"));
  }

  Client& client() { return *clients[random() % clients.size()]; }

  void operate(int done) {
    // The wide ones come when the others have filled the tiers.
    const std::size_t ns = random() % (done < kWideFrom ? 2 : namespaces.size());
    const auto chance = random() % 1000;
    if (chance < 250) return client().put(ns, prefix(ns));
    Client& one = client();
    if (chance < 650) {
      if (one.leases() >= 20) one.release(random(), std::nullopt);
      const auto more = static_cast<std::uint32_t>(random() % 3 == 0 ? random() % 50 : 0);
      return one.lease(ns, prefix(ns), more, true);
    }
    if (chance < 900) {
      if (one.leases() == 0) return;
      return one.release(
          random(), random() % 4 == 0 ? std::optional<std::uint32_t>(random() % 8) : std::nullopt);
    }
    if (chance < 960) {
      if (random() % 4 != 0) return one.report(ns, random() % 30);
      const auto blocks = prefix(ns);
      const std::size_t before = one.leases();
      if (before < 20) one.lease(ns, blocks, 0, true);
      if (one.leases() > before) one.spoil(before, blocks);
      return;
    }
    if (chance < 985) return die_and_come_back();
    if (chance < 992) return damage_a_segment();
    const auto tiers = static_cast<std::uint8_t>(random() % 4 == 0 ? 1 + random() % 7 : 2);
    ASSERT_TRUE(one.wire().request([&](Builder m) { m.initDrop().setTiers(tiers); }));
  }

  void die_and_come_back() {
    auto& one = clients[random() % clients.size()];
    one->sync();  // what it had said is in the daemon's hands; the rest goes with it
    if (random() % 2 == 0) {
      const std::size_t ns = random() % namespaces.size();
      one->lease(ns, prefix(ns), 3, false);
    }
    one->die(random() % 2 == 0);
    one = std::make_unique<Client>((scratch / "s").string(), namespaces, model);
  }

  // Nothing is leased or on its way to disk, and one size has the whole host tier, so that extents
  // can be given up for the other.
  void make_way() {
    for (const auto& one : clients) {
      while (one->leases() > 0) one->release(0, std::nullopt);
      one->sync();
    }
    ASSERT_TRUE(client().wire().request([&](Builder m) { m.initDrop().setTiers(2); }));
    // More of the one size than the tier holds, so that the other finds every extent taken.
    for (Token i = 0; i < 50; ++i)
      client().put(0, prefix_of(id_of(namespaces[0]), 12, static_cast<Token>(1000 * i)));
    ASSERT_TRUE(client().wire().flush());
    for (int i = 0; i < 20; ++i) client().put(2, prefix(2));
  }

  void check_a_scrape() {
    for (const auto& one : clients) one->sync();
    const Metrics metrics = daemon.metrics();
    for (const auto& [series, looked_up] : metrics) {
      if (!series.starts_with("kvtier_looked_up_blocks_total{")) continue;
      const auto at = series.find("namespace=");
      const std::string ns = series.substr(at, series.find('"', at + 11) - at + 1);
      EXPECT_EQ(sum_of(metrics, "kvtier_hit_blocks_total", ns) +
                    sum_of(metrics, "kvtier_miss_blocks_total", ns),
                looked_up)
          << series;
    }
    // All that clients ever asked for is counted once or still leased. The leases of a client that
    // has just gone are one or the other.
    EXPECT_EQ(
        sum_of(metrics, "kvtier_looked_up_blocks_total") + sum_of(metrics, "kvtier_leased_blocks"),
        static_cast<double>(model.looked_up));
    for (const Tier tier : kAllTiers) {
      const std::string label = "tier=\"" + std::string(name(tier)) + "\"";
      EXPECT_EQ(sum_of(metrics, "kvtier_insertions_total", label) -
                    sum_of(metrics, "kvtier_removals_total", label),
                sum_of(metrics, "kvtier_tier_blocks", label))
          << label;
      EXPECT_EQ(sum_of(metrics, "kvtier_namespace_used_bytes", label),
                sum_of(metrics, "kvtier_tier_used_bytes", label));
    }
  }

  void check_the_end() {
    // Namespaces without a block that nobody has open go, and what was counted of them.
    const Client keeps_them_open((scratch / "s").string(), namespaces, model);
    for (const auto& one : clients) one->die(false);
    ASSERT_TRUE(comes_to_hold([&] {
      const Metrics now = daemon.metrics();
      return now.at("kvtier_sessions") == 1 && now.at("kvtier_leased_blocks") == 0;
    }));
    clients.clear();
    check_a_scrape();
    const Metrics end = daemon.metrics();
    const auto hits = [&](Tier tier) {
      return sum_of(end, "kvtier_hit_blocks_total", "tier=\"" + std::string(name(tier)) + "\"");
    };
    double counted = sum_of(end, "kvtier_miss_blocks_total");
    double expected = static_cast<double>(model.misses);
    EXPECT_GE(counted, expected);
    for (const Tier tier : kAllTiers) {
      const auto least = static_cast<double>(model.hits[index_of(tier)]);
      EXPECT_GE(hits(tier), least) << name(tier);
      counted += hits(tier);
      expected += least;
    }
    EXPECT_EQ(counted, expected + static_cast<double>(model.unsure));
    // A campaign that no longer reaches what it is for is noticed.
    EXPECT_GT(model.hits[index_of(Tier::host)], 10'000U);
    EXPECT_GT(model.hits[index_of(Tier::disk)], 1'000U);
    EXPECT_GT(model.misses, 10'000U);
    EXPECT_LT(model.unsure, model.looked_up / 50);
    for (const char* reason : {"capacity", "other_size", "drop", "forgotten", "corrupt"}) {
      EXPECT_GT(sum_of(end, "kvtier_removals_total", "reason=\"" + std::string(reason) + "\""), 0)
          << reason;
    }
    EXPECT_GT(end.at("kvtier_frame_errors_total"), 100);
  }

  Scratch scratch;
  std::mt19937 random{20};
  Model model;
  RunningDaemon daemon{scratch, more()};
  std::vector<std::unique_ptr<Client>> clients;
};

TEST_F(IdentityTest, holds_after_a_hundred_thousand_random_operations_and_at_every_scrape_between) {
  for (std::size_t i = 0; i < kClients; ++i)
    clients.push_back(std::make_unique<Client>((scratch / "s").string(), namespaces, model));
  for (int done = 0; done < kOperations && !HasFailure(); ++done) {
    if (done == kWideFrom) make_way();
    operate(done);
    if (done % 500 == 0) check_a_scrape();
  }
  check_the_end();
}

}  // namespace
}  // namespace kvtier::daemon::testing
