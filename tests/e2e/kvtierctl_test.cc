// Every command of kvtierctl against a running kvtierd that an engine has filled.
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvtier/client.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/run_program.h"

namespace kvtier::e2e {
namespace {

using Json = nlohmann::json;

class KvtierCtl : public testing::Test {
 protected:
  KvtierCtl() {
    daemon_.start();
    std::ofstream(prompt()) << std::string(2000, 'a') + " transaction isolation in a database";
  }
  std::string prompt() const { return (daemon_.directory() / "prompt.txt").string(); }
  std::string command(const std::string& arguments) const {
    return std::string(KVTIERCTL) + " --socket " + daemon_.socket() + " " + arguments;
  }
  Outcome ctl(const std::string& arguments) const { return run(command(arguments)); }
  // What a command that succeeds prints with --json.
  Json json(const std::string& arguments) const {
    const Outcome outcome = ctl(arguments + " --json");
    EXPECT_EQ(outcome.exit_code, 0) << arguments << ":\n" << outcome.output;
    return Json::parse(outcome.output, nullptr, false);
  }
  int generate() const {
    const Outcome outcome =
        run(std::string(KVTIER_ENGINE) + " generate --model " + KVTIER_MODEL + " --socket " +
            daemon_.socket() + " --prompt-file " + prompt() + " --max-tokens 4 --json --flush");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return Json::parse(outcome.output)["runs"][0]["reused_tokens"];
  }
  Json blocks(const std::string& more = "") const {
    return json("ls --limit 10000 --sort index " + more)["blocks"];
  }
  std::string model() const {
    const std::string name = json("ls")["namespaces"][0]["model"];
    return name.substr(0, name.rfind('@'));
  }
  Json host(const std::string& field) const { return json("status")["tiers"][1][field]; }

  DaemonProcess daemon_;
};

TEST_F(KvtierCtl, pinned_blocks_stay_until_they_are_unpinned_and_say_for_how_long) {
  generate();
  const auto all = blocks();
  ASSERT_GT(all.size(), 10U);
  const std::string key = all[4]["key"];
  const auto pinned = json("pin " + key + " --tier host --for 1h");
  EXPECT_EQ(pinned["placements_pinned"], 5);
  EXPECT_EQ(pinned["placements_refused"], 0);
  EXPECT_EQ(host("pinned_blocks"), 5);
  const auto inspected = json("inspect " + key);
  EXPECT_EQ(inspected["pinned"], Json({"host"}));
  EXPECT_GT(inspected["placements"][0]["pinned_ms"], 3'500'000);
  const auto dropped = json("drop --tier host");
  EXPECT_EQ(dropped["blocks_pinned"], 5);
  EXPECT_EQ(blocks("--tier host").size(), 5U);
  EXPECT_EQ(json("unpin --all")["blocks_unpinned"], 5);
  EXPECT_EQ(json("drop --tier host")["blocks_dropped"], 5);
  EXPECT_EQ(host("pinned_bytes"), 0);
}

TEST_F(KvtierCtl, more_pins_than_their_share_of_the_tier_are_refused_and_the_rest_is_pinned) {
  generate();
  const auto max = host("pinned_bytes_max").get<std::uint64_t>();
  EXPECT_LE(max, host("cap_bytes").get<std::uint64_t>() / 4);
  const std::uint64_t record = blocks()[0]["record_bytes"];
  const auto held = blocks("--tier host").size();
  const Outcome pinned = ctl("pin --model " + model() + " --tier host --for 10m --json");
  const auto result = Json::parse(pinned.output);
  const std::uint64_t fit = std::min<std::uint64_t>(held, max / record);
  EXPECT_EQ(result["placements_pinned"], fit);
  EXPECT_EQ(result["placements_refused"], held - fit);
  EXPECT_EQ(pinned.exit_code, held > fit ? 6 : 0);
}

TEST_F(KvtierCtl, a_drop_by_key_takes_what_begins_with_it_and_leaves_the_rest) {
  generate();
  const auto all = blocks();
  const std::size_t kept = 7;
  const auto dropped = json("drop " + all[kept]["key"].get<std::string>());
  EXPECT_EQ(dropped["blocks_dropped"], all.size() - kept);
  const auto left = blocks();
  ASSERT_EQ(left.size(), kept);
  for (const auto& block : left) EXPECT_LT(block["block_index"], kept);
  EXPECT_EQ(generate(), static_cast<int>(kept) * 16);
}

TEST_F(KvtierCtl, an_invalidated_model_is_computed_anew) {
  EXPECT_EQ(generate(), 0);
  EXPECT_GT(generate(), 0);
  const auto name = model();
  const auto count = blocks().size();
  const auto result = json("invalidate " + name);
  EXPECT_EQ(result["namespaces"].size(), 1U);
  EXPECT_EQ(result["blocks_dropped"], count);
  EXPECT_EQ(result["disks_offline"].size(), 0U);
  EXPECT_EQ(blocks().size(), 0U);
  daemon_.kill_and_start();  // at once: nothing of it is on disk either
  EXPECT_EQ(blocks().size(), 0U);
  EXPECT_EQ(generate(), 0);
  EXPECT_GT(generate(), 0);
  EXPECT_EQ(ctl("invalidate no-such-model").exit_code, 5);
  EXPECT_EQ(ctl("invalidate " + name + "@1").exit_code, 2);
}

// The index is what says that they are gone; the segments have their records still.
TEST_F(KvtierCtl, what_was_dropped_or_invalidated_does_not_come_back_where_the_index_is_lost) {
  const auto start_without_index = [&] {
    daemon_.send(SIGTERM);
    std::filesystem::remove_all(daemon_.directory() / "disk" / "index");
    daemon_.start();
  };
  generate();
  const auto all = blocks();
  const auto name = model();
  start_without_index();
  ASSERT_EQ(blocks().size(), all.size()) << "nothing was dropped";

  const std::size_t kept = 7;
  json("drop " + all[kept]["key"].get<std::string>());
  json("flush");
  start_without_index();
  EXPECT_EQ(blocks().size(), kept);
  EXPECT_EQ(generate(), static_cast<int>(kept) * 16);
  start_without_index();
  EXPECT_EQ(blocks().size(), all.size()) << "what was written after the drop";

  json("invalidate " + name);
  start_without_index();
  EXPECT_EQ(blocks().size(), 0U);
  EXPECT_EQ(generate(), 0);
  json("drop --all");
  json("flush");
  start_without_index();
  EXPECT_EQ(blocks().size(), 0U);
}

TEST_F(KvtierCtl, inspect_shows_a_block_and_verifies_its_record_where_it_lies) {
  generate();
  const auto all = blocks();
  // The background scrub may have all of the disk's readers for a moment.
  auto inspected = json("inspect --verify " + all[1]["key"].get<std::string>());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (inspected.dump().find("scrubs as there can be are under way") != std::string::npos &&
         std::chrono::steady_clock::now() < until) {
    inspected = json("inspect --verify " + all[1]["key"].get<std::string>());
  }
  EXPECT_EQ(inspected["parent"], all[0]["key"]);
  EXPECT_EQ(inspected["parent_cached"], true);
  EXPECT_EQ(inspected["namespace"]["model"], json("ls")["namespaces"][0]["model"]);
  ASSERT_EQ(inspected["placements"].size(), 2U);
  for (const auto& placement : inspected["placements"])
    EXPECT_EQ(placement["checksum"], "holds") << placement.dump();
  EXPECT_NE(inspected["placements"][1]["where"].get<std::string>().find("disk"), std::string::npos);
  const auto text = ctl("inspect " + all[0]["key"].get<std::string>());
  EXPECT_NE(text.output.find("a prefix's first block"), std::string::npos) << text.output;
  EXPECT_EQ(text.output.find('\x1b'), std::string::npos);
  EXPECT_EQ(ctl("inspect " + std::string(32, '0')).exit_code, 5);
}

TEST_F(KvtierCtl, a_list_is_filtered_sorted_and_cut) {
  generate();
  const auto all = blocks();
  EXPECT_EQ(blocks("--tier disk").size(), all.size());
  EXPECT_EQ(blocks("--tier device").size(), 0U);
  EXPECT_EQ(blocks("--model " + model()).size(), all.size());
  EXPECT_EQ(blocks("--namespace " + all[0]["namespace"].get<std::string>()).size(), all.size());
  EXPECT_EQ(ctl("ls --model " + model() + " --revision none").exit_code, 5);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i]["block_index"], i);
  const auto three = json("ls --limit 3 --sort key");
  ASSERT_EQ(three["blocks"].size(), 3U);
  EXPECT_EQ(three["more_blocks"], true);
  for (const auto& block : all) {
    const bool listed = std::ranges::any_of(
        three["blocks"], [&](const auto& b) { return b["key"] == block["key"]; });
    if (!listed) {
      EXPECT_GT(block["key"], three["blocks"][2]["key"]);
    }
  }
}

TEST_F(KvtierCtl, names_that_clients_chose_are_escaped_and_salts_are_shown_to_nobody) {
  const std::string name("\x1b[31mred\0end\nline", 17);
  const std::string salt = "a-secret-\x1b[1m-salt";
  auto client = Client::start({.socket = daemon_.socket(), .name = name}).value();
  ASSERT_TRUE(client->wait_connected(Clock::now() + std::chrono::seconds(10)));
  Namespace ns;
  ns.model = name;
  ns.tenant = salt;
  ns.layers = ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = 16;
  const auto hostile = client->open(ns).value();
  ns.model = "later";
  const auto later = client->open(ns).value();
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (json("ls")["namespaces"].size() != 2) ASSERT_LT(Clock::now(), deadline);
  for (const char* looked : {"ls", "status", "sessions", "top --once --interval 0.1"}) {
    const std::string text = ctl(looked).output;
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << looked << ":\n" << text;
    EXPECT_EQ(text.find('\0'), std::string::npos) << looked;
    EXPECT_EQ(text.find("a-secret"), std::string::npos) << looked << ":\n" << text;
  }
  const std::string table = ctl("ls").output;
  EXPECT_NE(table.find(R"(\x1b[31mred\x00end\x0aline)"), std::string::npos) << table;
  EXPECT_NE(table.find("later"), std::string::npos) << "the list went on behind the NUL:\n"
                                                    << table;
  const Json all = json("ls");
  EXPECT_EQ(all.dump().find("a-secret"), std::string::npos);
  for (const Json& one : all["namespaces"]) {
    EXPECT_EQ(one["tenant"], "default");
    EXPECT_EQ(one["salted"], true);
  }
}

// 64 MiB were asked for, and the status named a smaller number without a word.
TEST_F(KvtierCtl, a_disks_capacity_stands_beside_what_of_it_holds_records) {
  const Json disk = json("status")["disks"][0];
  EXPECT_EQ(disk["capacity_bytes"], 64U << 20);
  EXPECT_LT(disk["cap_bytes"], disk["capacity_bytes"]);
  const std::string text = ctl("status").output;
  EXPECT_NE(text.find(" MiB of 64.00 MiB"), std::string::npos) << text;
}

TEST_F(KvtierCtl, each_program_says_its_name_with_its_version) {
  for (const std::string program : {KVTIERD, KVTIERCTL, KVTIER_ENGINE}) {
    const Outcome outcome = run(program + " --version");
    EXPECT_EQ(outcome.exit_code, 0);
    const std::string name = std::filesystem::path(program).filename();
    EXPECT_TRUE(outcome.output.starts_with(name + " ")) << outcome.output;
  }
}

TEST_F(KvtierCtl, flush_sessions_and_quotas_answer) {
  generate();
  EXPECT_EQ(json("flush")["flushed"], true);
  const auto sessions = json("sessions")["sessions"];
  ASSERT_EQ(sessions.size(), 1U);
  EXPECT_EQ(sessions[0]["name"], "kvtierctl");
  const auto tenants = json("quota")["tenants"];
  ASSERT_EQ(tenants.size(), 1U);
  EXPECT_EQ(tenants[0]["used_bytes"]["disk"], json("status")["tiers"][2]["used_bytes"]);
  EXPECT_NE(ctl("quota").output.find("TENANT"), std::string::npos);
}

TEST_F(KvtierCtl, top_once_gives_rates_and_who_uses_what) {
  generate();
  const auto view = json("top --once --interval 0.1");
  EXPECT_GT(view["interval_s"], 0.05);
  EXPECT_EQ(view["tiers"].size(), 3U);
  EXPECT_EQ(view["namespaces"][0]["blocks"], blocks().size());
  EXPECT_EQ(view["disks"].size(), 1U);
  const auto text = ctl("top --once --interval 0.1");
  EXPECT_NE(text.output.find("hit rate"), std::string::npos) << text.output;
  EXPECT_EQ(text.output.find('\x1b'), std::string::npos);
}

TEST_F(KvtierCtl, top_on_a_terminal_draws_until_q_and_gives_the_terminal_back) {
  winsize size{40, 120, 0, 0};
  int master = -1;
  const std::string script = command("top --interval 0.2") + "; echo ended $?; stty -a";
  const pid_t pid = ::forkpty(&master, nullptr, nullptr, &size);
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    ::_exit(127);
  }
  std::string seen;
  const auto read_some = [&] {
    std::array<char, 4096> bytes;
    const ssize_t n = ::read(master, bytes.data(), bytes.size());
    if (n > 0) seen.append(bytes.data(), static_cast<std::size_t>(n));
    return n > 0;
  };
  const auto drawn = [&] {
    std::size_t times = 0;
    for (std::size_t at = 0; (at = seen.find("\x1b[H", at)) != std::string::npos; ++at) ++times;
    return times;
  };
  while (drawn() < 3 && read_some()) {
  }
  EXPECT_NE(seen.find("hit rate"), std::string::npos) << seen;
  ASSERT_EQ(::write(master, "q", 1), 1);
  while (read_some()) {
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(master);
  const std::string after = seen.substr(seen.find("ended"));
  EXPECT_EQ(after.rfind("ended 0", 0), 0U) << after;
  EXPECT_NE(after.find(" icanon"), std::string::npos) << after;
  EXPECT_NE(after.find(" echo "), std::string::npos) << after;
  EXPECT_LT(seen.rfind("\x1b[?1049l"), seen.find("ended"));
}

TEST_F(KvtierCtl,
       check_system_looks_at_the_running_daemon_and_its_exit_says_whether_any_check_failed) {
  const auto outcome = ctl("check-system --json");
  const auto checks = Json::parse(outcome.output);
  EXPECT_EQ(outcome.exit_code, checks["failed"] == 0 ? 0 : 1);
  std::string names;
  for (const auto& check : checks["checks"]) names += check["check"].get<std::string>() + "\n";
  for (const char* name : {"daemon", "socket", "memory", "memlock", "transparent huge pages",
                           "swap", "io_uring", "memfd", "open files", "GPU", "disk /"})
    EXPECT_NE(names.find(name), std::string::npos) << name << " is not in\n" << names;
  EXPECT_EQ(checks["checks"][0]["state"], "ok");
  EXPECT_EQ(checks["checks"][1]["state"], "ok");
}

TEST_F(KvtierCtl, each_command_explains_itself_with_examples_at_the_end) {
  for (const char* name :
       {"", "status", "top", "ls", "inspect", "sessions", "pin", "unpin", "quota", "quota set",
        "drop", "invalidate", "flush", "scrub", "check-system"}) {
    const Outcome help = run(std::string(KVTIERCTL) + " " + name + " --help");
    EXPECT_EQ(help.exit_code, 0) << name;
    const auto examples = help.output.find("\nExamples:\n  kvtierctl ");
    EXPECT_NE(examples, std::string::npos) << name << ":\n" << help.output;
    EXPECT_GT(examples, help.output.find("-h,--help")) << name;
  }
  const auto help = run(std::string(KVTIERCTL) + " --help").output;
  for (const char* code : {"  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  ", "  6  "})
    EXPECT_NE(help.find(code), std::string::npos) << code;
}

TEST_F(KvtierCtl, wrong_usage_exits_2_and_says_what_is_missing) {
  const std::string key(32, 'a');
  for (const auto& [arguments, word] : std::vector<std::pair<std::string, std::string>>{
           {"drop", "--all"},
           {"drop --all --tier host", "--all alone"},
           {"drop " + key + " --force --tier host", "--force"},
           {"pin " + key, "--for"},
           {"pin --for 1h", "KEY"},
           {"pin " + key + " --for 1y", "30d"},
           {"pin 123 --for 1h", "32"},
           {"unpin", "--all"},
           {"invalidate", "MODEL"},
           {"inspect", "KEY"},
           {"quota set team", "--host"},
           {"quota set team --host much", "2.5GiB"},
           {"ls --revision 1", "--model"},
           {"ls --sort colour", "access"}}) {
    const Outcome outcome = ctl(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.output;
    EXPECT_NE(outcome.output.find(word), std::string::npos) << arguments << "\n" << outcome.output;
  }
  EXPECT_EQ(ctl("quota set nobody --host 1GiB").exit_code, 5);
  EXPECT_EQ(run(std::string(KVTIERCTL) + " --socket /nonexistent/s status").exit_code, 3);
  EXPECT_EQ(run(std::string(KVTIERCTL) + " --socket /nonexistent/s top --once").exit_code, 3);
}

}  // namespace
}  // namespace kvtier::e2e
