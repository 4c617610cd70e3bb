// Who may do what, and how much: each refusal and each bound, over the socket.
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>

#include "daemon/config/tenants.h"
#include "daemon/limits.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

Namespace of_tenant(const std::string& salt) {
  Namespace ns = small_namespace("m");
  ns.tenant = salt;
  return ns;
}

class AccessTest : public ::testing::Test {
 protected:
  // `more` are keys of the top level; `tables` come last.
  void serve(const std::string& more, const std::string& tables = "") {
    ::chmod((scratch / "").c_str(), 0755);
    daemon = std::make_unique<Kvtierd>(
        scratch, small_config(scratch, "socket_mode = '0666'\n" + more) + tables);
  }
  std::string socket() const { return (scratch / "s").string(); }
  WireClient client(bool read_only = false) const {
    return WireClient::greeted(socket(), read_only);
  }

  // What `work` returns in a process of another user with these supplementary groups: 0 for right.
  int as_nobody(const std::function<int()>& work, std::vector<gid_t> groups = {}) {
    const pid_t child = ::fork();
    if (child == 0) {
      constexpr uid_t kNobody = 65534;
      if (::setgroups(groups.size(), groups.data()) != 0 ||
          ::setresgid(kNobody, kNobody, kNobody) || ::setresuid(kNobody, kNobody, kNobody) != 0) {
        ::_exit(99);
      }
      ::_exit(work());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // The daemon's answer to a request that it refuses.
  static std::string refusal(WireClient& c, const std::function<void(Builder)>& fill) {
    return c.request(fill) ? "granted" : c.error() ? c.error()->message : "no answer";
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  std::string ends(WireClient& c) { return c.is_closed() ? c.why : "still open"; }

  Scratch scratch;
  std::unique_ptr<Kvtierd> daemon;
};

// For what another user sees; only root can become one.
#define KVTIER_NEEDS_ROOT() \
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act as another user"

TEST_F(AccessTest, status_shows_each_session_with_its_process_and_user) {
  serve("");
  WireClient one = client(), other = client(true);
  const auto handle = one.open(small_namespace("m"));
  ASSERT_EQ(one.reserve(handle, 3).size(), 3U);
  ASSERT_TRUE(other.request([](Builder m) { m.setStatus(); },
                            [](Reader m) {
                              const auto peers = m.getStatusReply().getPeers();
                              ASSERT_EQ(peers.size(), 2U);
                              EXPECT_EQ(peers[0].getPid(), static_cast<std::uint32_t>(::getpid()));
                              EXPECT_EQ(peers[0].getUid(), ::geteuid());
                              EXPECT_EQ(peers[0].getReservedSlots(), 3U);
                              EXPECT_FALSE(peers[0].getReadOnly());
                              EXPECT_TRUE(peers[0].getAdmin());
                              EXPECT_TRUE(peers[1].getReadOnly());
                            }));
}

TEST_F(AccessTest, a_tenant_that_is_not_the_peers_is_refused_by_name) {
  serve("", "[[tenant]]\nname = 'theirs'\nusers = [12345]\n");
  WireClient c = client();
  EXPECT_FALSE(c.try_open(of_tenant("theirs")));
  ASSERT_TRUE(c.error());
  EXPECT_EQ(c.error()->code, Errc::refused);
  EXPECT_TRUE(has(c.error()->message, "may not use the tenant 'theirs'")) << c.error()->message;
  EXPECT_TRUE(c.try_open(of_tenant("ours")));
  EXPECT_EQ(c.status()->denied, 1U);
}

TEST_F(AccessTest, another_user_gets_in_by_its_supplementary_group_and_sees_no_other_tenant) {
  KVTIER_NEEDS_ROOT();
  serve("",
        "[[tenant]]\nname = 'a'\ngroups = [4242]\n[[tenant]]\nname = 'b'\nusers = [12345, 0]\n");
  WireClient root = client();
  ASSERT_TRUE(root.try_open(of_tenant("b")));
  const auto work = [&] {
    WireClient c = client();
    if (!c.try_open(of_tenant("a"))) return 1;
    if (c.try_open(of_tenant("b"))) return 2;
    int wrong = 0;
    c.request([](Builder m) { m.setStatus(); },
              [&](Reader m) {
                const auto s = m.getStatusReply();
                if (s.getTenants().size() != 2 || s.getTenants()[1].getName() != "a") wrong = 3;
                if (s.getPeers().size() != 1) wrong = 4;
              });
    c.request(
        [](Builder m) {
          auto request = m.initList();
          request.setBlocksMax(100);
          request.setNamespacesMax(100);
        },
        [&](Reader m) {
          if (m.getListReply().getNamespaces().size() != 1) wrong = 5;
        });
    const NamespaceId hidden = id_of(of_tenant("b"));
    const auto answer = refusal(c, [&](Builder m) {
      m.initList().initNamespaces().setId(
          {reinterpret_cast<const kj::byte*>(&hidden), sizeof hidden});
    });
    return has(answer, "no namespace") ? wrong : 6;
  };
  EXPECT_EQ(as_nobody(work, {4242}), 0);
  EXPECT_EQ(as_nobody(work), 1);  // without the group
}

TEST_F(AccessTest, what_an_administrator_may_others_may_not) {
  KVTIER_NEEDS_ROOT();
  serve("", "[access]\nadmin_group = 4243\n");
  const std::vector<std::function<void(Builder)>> requests{[](Builder m) { m.initDrop(); },
                                                           [](Builder m) { m.initScrub(); },
                                                           [](Builder m) {
                                                             auto quota = m.initSetQuota();
                                                             quota.setTenant("default");
                                                             quota.setTier(1);
                                                             quota.setQuotaBytes(kNoQuota);
                                                           }};
  const auto work = [&] {
    WireClient c = client();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto answer = refusal(c, requests[i]);
      if (answer != "granted") return has(answer, "admin_group") ? 10 : 20;
    }
    return 0;
  };
  EXPECT_EQ(as_nobody(work), 10);
  EXPECT_EQ(as_nobody(work, {4243}), 0);
  WireClient root = client();
  for (const auto& request : requests) EXPECT_EQ(refusal(root, request), "granted");
  EXPECT_EQ(root.status()->denied, 1U);
}

TEST_F(AccessTest, a_quota_is_set_while_the_daemon_runs) {
  serve("", "[[tenant]]\nname = 'a'\n");
  WireClient c = client();
  const auto set = [&](const char* tenant, std::uint64_t quota, std::uint64_t guaranteed) {
    return refusal(c, [&](Builder m) {
      auto request = m.initSetQuota();
      request.setTenant(tenant);
      request.setTier(1);
      request.setQuotaBytes(quota);
      request.setGuaranteedBytes(guaranteed);
    });
  };
  EXPECT_EQ(set("a", 4 * kRecordBytes, 0), "granted");
  const Namespace ns = of_tenant("a");
  const auto handle = c.open(ns);
  const auto prefix = prefix_of(id_of(ns), 8, 1);
  for (const auto& block : prefix) EXPECT_TRUE(c.put(handle, ns, block));
  c.request([](Builder m) { m.setStatus(); },
            [](Reader m) {
              const auto tenant = m.getStatusReply().getTenants()[1];
              EXPECT_EQ(tenant.getName(), "a");
              EXPECT_EQ(tenant.getUsedBytes()[1], 4 * kRecordBytes);
              EXPECT_EQ(tenant.getQuotaBytes()[1], 4 * kRecordBytes);
            });
  EXPECT_TRUE(has(set("nobody", 1, 0), "no tenant 'nobody'"));
  EXPECT_TRUE(has(set("a", 1ULL << 40, 1ULL << 30), "guaranteed"));
}

TEST_F(AccessTest, a_read_only_session_leases_and_does_nothing_else) {
  serve("");
  const Namespace ns = small_namespace("m");
  WireClient writer = client();
  const auto prefix = prefix_of(id_of(ns), 3, 1);
  const auto handle = writer.open(ns);
  for (const auto& block : prefix) ASSERT_TRUE(writer.put(handle, ns, block));
  WireClient reader = client(true);
  EXPECT_TRUE(reader.read_only());
  const auto opened = reader.open(ns);
  const auto slots = reader.lease(opened, prefix);
  ASSERT_EQ(slots.size(), 3U);
  EXPECT_TRUE(record_is(reader.record(slots[2]), RecordLayout::of(ns), prefix[2]));
  EXPECT_TRUE(has(refusal(reader, [&](Builder m) { m.initReserve().setNs(opened); }), "read-only"));
  EXPECT_TRUE(has(refusal(reader, [&](Builder m) { m.initCommit().setNs(opened); }), "read-only"));
  EXPECT_TRUE(has(refusal(reader, [&](Builder m) { m.setFlush(); }), "read-only"));
  writer.record(writer.lease(handle, prefix)[2])[0] ^= std::byte{1};
  reader.report(prefix[2].key());
  EXPECT_EQ(reader.status()->refused_reports, 1U);
  reader.send([](Builder m) { m.initAbandon(1).set(0, 1ULL << 32); });
  EXPECT_TRUE(has(ends(reader), "read-only"));
  EXPECT_TRUE(writer.status());
}

// As another user where that is possible, for root may open anything.
TEST_F(AccessTest, a_read_only_sessions_memory_cannot_be_made_writable) {
  serve("");
  const Namespace ns = small_namespace("m");
  WireClient writer = client();
  const auto prefix = prefix_of(id_of(ns), 1, 1);
  ASSERT_TRUE(writer.put(writer.open(ns), ns, prefix[0]));
  const auto work = [&] {
    WireClient reader = client(true);
    const auto slots = reader.lease(reader.open(ns), prefix);
    if (slots.size() != 1) return 1;
    const int fd = reader.extent_fd(slots[0]);
    const auto refused = [](bool failed) { return failed && (errno == EACCES || errno == EPERM); };
    void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!refused(at == MAP_FAILED)) return 2;
    at = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 3;
    if (!refused(::mprotect(at, 4096, PROT_READ | PROT_WRITE) != 0)) return 4;
    const std::string name = "/proc/self/fd/" + std::to_string(fd);
    if (!refused(::open(name.c_str(), O_RDWR) < 0)) return 5;
    if (!refused(::open(name.c_str(), O_WRONLY) < 0)) return 6;
    if (::write(fd, "x", 1) >= 0) return 7;
    return 0;
  };
  EXPECT_EQ(::geteuid() == 0 ? as_nobody(work) : work(), 0);
}

TEST_F(AccessTest, a_user_that_is_configured_as_a_reader_gets_no_more) {
  serve("", "[access]\nread_only_users = [" + std::to_string(::geteuid()) + "]\n");
  WireClient c = client();
  EXPECT_TRUE(c.read_only());
  const auto opened = c.open(small_namespace("m"));
  EXPECT_TRUE(
      has(refusal(c, [&](Builder m) { m.initReserve().setNs(opened); }), "read_only_users"));
}

TEST_F(AccessTest, an_isolated_tenants_memory_goes_to_its_own_sessions_alone) {
  serve("", "[[tenant]]\nname = 'apart'\nisolated = true\nquota = { host = '2MiB' }\n");
  const Namespace apart = of_tenant("apart"), other = of_tenant("");
  WireClient insider = client(), outsider = client();
  const auto in = insider.open(apart), out = outsider.open(other);
  std::set<std::uint64_t> of_insider, of_outsider;
  for (const auto slot : insider.reserve(in, 40)) of_insider.insert(slot >> 32);
  for (const auto slot : outsider.reserve(out, 40)) of_outsider.insert(slot >> 32);
  ASSERT_FALSE(of_insider.empty());
  ASSERT_FALSE(of_outsider.empty());
  for (const auto extent : of_insider) EXPECT_FALSE(of_outsider.contains(extent));
  EXPECT_EQ(outsider.extents(), of_outsider.size());
}

TEST_F(AccessTest, sessions_have_a_bound_and_administrators_a_few_more) {
  serve("", "[limits]\nsessions_max = 3\n");
  std::vector<WireClient> open;
  const std::size_t fit = 3 + limits::kAdminSessionsMax;  // this user is one
  for (std::size_t i = 0; i < fit; ++i) open.push_back(client());
  WireClient late(socket());
  EXPECT_TRUE(has(ends(late), "sessions_max")) << late.why;
  EXPECT_EQ(open[0].status()->turned_away, 1U);
  open.pop_back();
  EXPECT_TRUE(comes_to_hold([&] { return open[0].status()->sessions == fit - 1; }));
  EXPECT_TRUE(client().status());
}

TEST_F(AccessTest, each_user_has_a_bound_on_sessions_of_its_own) {
  KVTIER_NEEDS_ROOT();
  serve("", "[limits]\nsessions_per_user = 2\n");
  const auto work = [&] {
    WireClient one = client(), two = client();
    WireClient late(socket());
    return late.is_closed() && has(late.why, "sessions_per_user") ? 0 : 1;
  };
  EXPECT_EQ(as_nobody(work), 0);
  EXPECT_TRUE(client().status());
}

TEST_F(AccessTest, a_peer_that_says_no_hello_in_time_is_ended) {
  serve("", "[limits]\nhello_time_ms = 200\n");
  WireClient silent(socket());
  EXPECT_TRUE(has(ends(silent), "hello_time_ms")) << silent.why;
}

TEST_F(AccessTest, a_peer_that_does_not_complete_a_frame_in_time_is_ended) {
  serve("", "[limits]\nframe_time_ms = 200\n");
  const auto frame = frame_bytes({wire::kFrameMagic, 64, 0, 0}, std::vector<std::byte>(64));
  WireClient bystander = client();
  for (const std::size_t sent : {1, 16, 40}) {
    WireClient slow = client();
    slow.send_raw(std::span(frame).first(sent));
    EXPECT_TRUE(has(ends(slow), "frame_time_ms")) << sent << " bytes: " << slow.why;
  }
  EXPECT_TRUE(bystander.status());
}

TEST_F(AccessTest, a_peer_that_does_not_read_is_ended_and_others_are_served) {
  serve("", "[limits]\nunread_time_ms = 300\n");
  WireClient deaf = client(), bystander = client();
  // More than the socket takes; each answer is about a kilobyte.
  for (int i = 0; i < 3000; ++i) {
    if (!deaf.send([](Builder m) { m.setStatus(); }, 5)) break;
  }
  EXPECT_TRUE(comes_to_hold([&] { return bystander.status()->sessions == 1; }));
  EXPECT_TRUE(has(daemon->output(), "unread_time_ms")) << daemon->output();
}

TEST_F(AccessTest, requests_past_the_rate_wait_and_others_do_not) {
  serve("", "[limits]\nrequests_per_second = 1000\n");
  WireClient busy = client(), bystander = client();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 2500; ++i) ASSERT_TRUE(busy.send([](Builder m) { m.initRelease(1); }));
  ASSERT_TRUE(bystander.status());
  ASSERT_TRUE(busy.status());
  // A second's worth goes at once, the rest a thousand a second.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(AccessTest, leases_of_one_session_have_a_bound) {
  serve("", "[limits]\nleases_per_session = 2\n");
  const Namespace ns = small_namespace("m");
  WireClient c = client();
  const auto handle = c.open(ns);
  const auto prefix = prefix_of(id_of(ns), 1, 1);
  ASSERT_TRUE(c.put(handle, ns, prefix[0]));
  for (const std::size_t granted : {1, 1, 0}) EXPECT_EQ(c.lease(handle, prefix).size(), granted);
}

TEST_F(AccessTest, a_report_of_too_many_keys_ends_the_session) {
  serve("");
  WireClient c = client();
  c.send([](Builder m) { m.initReport().initBadKeys(limits::kBadKeysMax + 1); });
  EXPECT_TRUE(has(ends(c), "report with more elements in a list")) << c.why;
}

}  // namespace
}  // namespace kvtier::daemon::testing
