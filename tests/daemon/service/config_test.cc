#include "daemon/config/config.h"

#include <gtest/gtest.h>

#include "core/base/units.h"
#include "tests/daemon/support/config_error.h"

namespace kvtier::daemon {
namespace {

void expect_error(const std::string& text, const std::string& at, const std::string& part) {
  const std::string message = error_of(text);
  EXPECT_TRUE(message.starts_with("k.toml:" + at + ": ")) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(ConfigTest, an_empty_file_gives_the_defaults) {
  const auto config = parse_config("", "k.toml");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->socket, "/run/kvtier/kvtierd.sock");
  EXPECT_EQ(config->socket_mode, 0660U);
  EXPECT_EQ(config->host.capacity_bytes, 4_GiB);
  EXPECT_EQ(config->device.capacity_bytes, 0U);
  EXPECT_TRUE(config->disk.directories.empty());
  EXPECT_EQ(config->disk.admission, Admission::all);
}

TEST(ConfigTest, an_unknown_key_is_named_with_its_place_and_the_known_ones) {
  expect_error("[host]\ncapacity = 4096\nsize = 1\n", "3:1", "unknown key 'size' in [host]");
  expect_error("[host]\nsize = 1\n", "2:1", "capacity, extent_size");
  expect_error("\n  sockets = '/x'\n", "2:3", "unknown key 'sockets' at the top level");
}

TEST(ConfigTest, an_unknown_section_is_named_with_its_place_and_the_known_ones) {
  const std::string message = error_of("socket = '/x'\n[hots]\ncapacity = 1\n");
  EXPECT_TRUE(message.starts_with("k.toml:2:")) << message;
  EXPECT_NE(message.find("'hots'"), std::string::npos) << message;
  EXPECT_NE(
      message.find(
          "access, cache, device, disk, events, host, http, index, limits, pins, remote, tenant"),
      std::string::npos)
      << message;
}

TEST(ConfigTest, an_endpoint_is_a_place_that_zeromq_can_listen_on) {
  const auto endpoint = [](const std::string& text) {
    return "[events]\nendpoint = '" + text + "'\n";
  };
  expect_error(endpoint("/run/e.sock"), "2:12", "ipc:///run/kvtier/events.sock");
  expect_error(endpoint("ipc://e.sock"), "2:12", "an absolute path");
  expect_error(endpoint("ipc:///" + std::string(107, 'x')), "2:12", "at most 107 bytes");
  expect_error(endpoint("tcp://*:5557"), "2:12", "0.0.0.0 is every address");
  expect_error(endpoint("tcp://127.0.0.1"), "2:12", "an address and a port");
  expect_error(endpoint("tcp://127.0.0.1:0"), "2:12", "an address and a port");
  expect_error("[events]\nendpoint = 5557\n", "2:12", "in quotes");
  for (const char* good : {"", "ipc:///run/e", "tcp://127.0.0.1:5557", "tcp://[::1]:5557"})
    EXPECT_EQ(parse_config(endpoint(good), "k").value().events.endpoint, good);
}

TEST(ConfigTest, the_keys_of_events_fit_together) {
  EXPECT_NE(error_of("[events]\nreplay_endpoint = 'ipc:///r'\n").find("needs events.endpoint"),
            std::string::npos);
  EXPECT_NE(error_of("[events]\nendpoint = 'ipc:///e'\nreplay_endpoint = 'ipc:///e'\n")
                .find("an endpoint of its own"),
            std::string::npos);
  EXPECT_NE(error_of("[events]\ntenants = ['nobody']\n").find("'nobody'"), std::string::npos);
  EXPECT_TRUE(parse_config("[events]\ntenants = ['default', 'a']\n[[tenant]]\nname = 'a'\n", "k"));
  expect_error("[events]\ntenants = ['']\n", "2:11", "a list of at most 64 names");
  expect_error("[events]\nblock_hashes = 'hex'\n", "2:16", "\"int64\", \"bytes\"");
  expect_error("[events]\nqueue_size = 4096\n", "2:14", "at least 262144 bytes");
}

TEST(ConfigTest, a_value_in_a_sections_place_is_an_error) {
  expect_error("host = 5\n", "1:1", "'host'");
  expect_error("[socket]\npath = '/x'\n", "1:1", "socket");
}

TEST(ConfigTest, a_wrong_type_says_what_is_expected) {
  expect_error("[host]\ncapacity = true\n", "2:12", "capacity: expected a size");
  expect_error("[host]\ncapacity = 1.5\n", "2:12", "expected a size");
  expect_error("[host]\nhuge_pages = 1\n", "2:14", "expected true or false");
  expect_error("lease_time_ms = '1s'\n", "1:17", "expected milliseconds from 100 to 3600000");
  expect_error("socket = 5\n", "1:10", "expected an absolute path in quotes");
  expect_error("[index]\nblocks_max = 'many'\n", "2:14", "expected a whole number from 16");
}

TEST(ConfigTest, a_size_needs_a_unit_that_is_known) {
  expect_error("[host]\ncapacity = '4 cows'\n", "2:12", "64MiB");
  expect_error("[host]\ncapacity = '4.GiB'\n", "2:12", "64MiB");
  expect_error("[host]\ncapacity = 'GiB'\n", "2:12", "64MiB");
  expect_error("[host]\ncapacity = ''\n", "2:12", "64MiB");
  EXPECT_EQ(parse_config("[host]\ncapacity = '8192'\n", "k").value().host.capacity_bytes, 8192U);
  EXPECT_EQ(parse_config("[host]\ncapacity = '3MiB'\n", "k").value().host.capacity_bytes, 3_MiB);
  EXPECT_EQ(parse_config("[host]\ncapacity = '1.5 GiB'\n", "k").value().host.capacity_bytes,
            1536_MiB);
}

TEST(ConfigTest, a_size_is_neither_negative_nor_too_large_nor_uneven) {
  expect_error("[host]\ncapacity = -4096\n", "2:12", "expected a size");
  expect_error("[host]\ncapacity = '-1GiB'\n", "2:12", "expected a size");
  expect_error("[host]\ncapacity = '99999999999TiB'\n", "2:12", "expected a size");
  expect_error("[host]\ncapacity = '99999999999999999999999'\n", "2:12", "expected a size");
  expect_error("[host]\ncapacity = 5000\n", "2:12", "a multiple of 4096");
  expect_error("[disk]\nsegment_size = 4096\n", "2:16", "at least 65536 bytes");
}

TEST(ConfigTest, the_host_tier_may_be_a_share_of_the_machine_or_as_suits_it) {
  EXPECT_EQ(parse_config("", "k")->host.sizing, Sizing::automatic);
  const auto share = parse_config("[host]\ncapacity = '25%'\n", "k");
  ASSERT_TRUE(share);
  EXPECT_EQ(share->host.sizing, Sizing::share);
  EXPECT_EQ(share->host.share_percent, 25U);
  EXPECT_NE(to_toml(*share).find("capacity = '25%'"), std::string::npos) << to_toml(*share);
  EXPECT_EQ(parse_config("[host]\ncapacity = '1GiB'\n", "k")->host.sizing, Sizing::fixed);
  for (const char* wrong : {"'0%'", "'91%'", "'%'", "'2.5%'", "'-5%'", "'automatic'"})
    expect_error(std::string("[host]\ncapacity = ") + wrong + "\n", "2:12", "or \"auto\"");
  expect_error("[device]\ncapacity = '25%'\n", "2:12", "expected a size");
}

TEST(ConfigTest, changes_are_named_with_both_values_as_a_file_has_them) {
  const auto from = parse_config("[host]\ncapacity = '1GiB'\n", "k").value();
  const auto to = parse_config("log_level = 'warn'\n[host]\ncapacity = 'auto'\n", "k").value();
  const auto changes = changes_between(from, to);
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].key, "log_level");
  EXPECT_EQ(changes[1].key, "host.capacity");
  EXPECT_NE(changes[1].from.find("1GiB"), std::string::npos);
  EXPECT_NE(changes[1].to.find("auto"), std::string::npos);
  EXPECT_TRUE(changes_between(to, to).empty());
}

TEST(ConfigTest, gpus_are_different_numbers_and_at_least_one) {
  for (const char* wrong : {"[]", "[0, 0]", "[-1]", "[64]", "0", "['GPU-1']",
                            "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]"}) {
    expect_error(std::string("[device]\ngpus = ") + wrong + "\n", "2:8", "such as [0, 1]");
  }
  expect_error("[device]\nbackend = 'hip'\n", "2:11", "one of \"memory\", \"cuda\"");
  const auto config = parse_config("[device]\nbackend = 'cuda'\ngpus = [1, 0]\n", "k");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->device.backend, DeviceBackend::cuda);
  EXPECT_EQ(config->device.gpus, (std::vector<std::uint32_t>{1, 0}));
}

// It had no place in the file.
TEST(ConfigTest, a_host_tier_of_nothing_is_an_error_with_its_place) {
  expect_error("[host]\ncapacity = 0\n", "2:12", "at least 4096 bytes");
  EXPECT_TRUE(parse_config("[device]\ncapacity = 0\n", "k"));
}

TEST(ConfigTest, a_path_is_absolute) {
  expect_error("socket = 'kvtierd.sock'\n", "1:10", "an absolute path");
  expect_error("socket = ''\n", "1:10", "an absolute path");
  expect_error("[disk]\ndirectory = './x'\n", "2:13", "an absolute path");
  EXPECT_TRUE(parse_config("[disk]\ndirectory = ''\n", "k"));
}

TEST(ConfigTest, the_disk_has_one_directory_or_a_list_of_them) {
  using Paths = std::vector<std::filesystem::path>;
  EXPECT_EQ(parse_config("[disk]\ndirectory = '/a'\n", "k")->disk.directories, Paths{"/a"});
  EXPECT_EQ(
      parse_config("[disk]\ndirectories = ['/a', '/b']\ndirectory = ''\n", "k")->disk.directories,
      (Paths{"/a", "/b"}));
  expect_error("[disk]\ndirectory = '/a'\ndirectories = ['/b']\n", "2:13", "not both");
  expect_error("[disk]\ndirectories = ['/a', '/b', '/a']\n", "2:15", "/a is there twice");
  expect_error("[disk]\ndirectories = ['a']\n", "2:15", "absolute paths");
  expect_error("[disk]\ndirectories = '/a'\n", "2:15", "expected a list");
}

TEST(ConfigTest, a_choice_names_the_choices) {
  expect_error("log_level = 'loud'\n", "1:13",
               "expected one of \"debug\", \"info\", \"warn\", \"error\"");
  const std::string choices =
      "expected one of \"all\", \"second_hit\", \"expected_reuse\", \"none\"";
  expect_error("[disk]\nadmission = 'some'\n", "2:13", choices);
  expect_error("[disk]\nadmission = 1\n", "2:13", choices);
}

TEST(ConfigTest, a_budget_of_writes_and_what_holds_it_come_together) {
  const auto good =
      parse_config("[disk]\nadmission = 'expected_reuse'\nwrite_budget = '1TiB'\n", "k");
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(good->disk.write_budget, 1024_GiB);
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_NE(error_of(text).find(why), std::string::npos) << error_of(text);
  };
  refused("[disk]\nwrite_budget = '1TiB'\n",
          "k.toml: disk.write_budget is held by disk.admission \"expected_reuse\" alone");
  refused("[cache]\npolicy = 'lru'\n[disk]\nadmission = 'expected_reuse'\n",
          "set that, or another admission");
}

TEST(ConfigTest, a_remote_tier_is_off_unless_it_has_a_url_of_a_known_kind) {
  EXPECT_TRUE(parse_config("", "k")->remote.url.empty());
  for (const std::string good :
       {"", "redis://h:6379", "rediss://u@h:1,g:2", "redis+unix:///run/r.sock", "file:///mnt/kv"}) {
    EXPECT_EQ(parse_config("[remote]\nurl = '" + good + "'\n", "k").value().remote.url, good);
  }
  for (const std::string bad : {"h:6379", "http://h", "redis://", "file://mnt"}) {
    const std::string message = error_of("[remote]\nurl = '" + bad + "'\n");
    EXPECT_TRUE(message.starts_with("k.toml:2:")) << message;
    EXPECT_NE(message.find("redis://HOST:PORT"), std::string::npos) << message;
  }
  expect_error("[remote]\nadmission = 'some'\n", "2:13",
               "admission: expected one of \"second_use\", \"all\", \"warm\"");
  EXPECT_FALSE(parse_config("[remote]\npassword_file = 'secret'\n", "k"));
  EXPECT_FALSE(parse_config("[remote]\nlookup_timeout_ms = 0\n", "k"));
}

TEST(ConfigTest, the_keys_of_remote_fit_together) {
  const auto refused = [](const std::string& keys) { return error_of("[remote]\n" + keys + "\n"); };
  EXPECT_NE(refused("url = 'redis://h:1'\ntls_ca_file = '/ca'").find("rediss://"),
            std::string::npos);
  EXPECT_NE(refused("url = 'rediss://h:1'\ntls_cert_file = '/c'").find("give both"),
            std::string::npos);
  EXPECT_NE(refused("url = 'file:///d'\nexpiry_s = 60").find("remote.expiry_s"), std::string::npos);
  EXPECT_NE(refused("url = 'file:///d'\npassword_file = '/p'").find("remote.password_file"),
            std::string::npos);
  EXPECT_NE(refused("tenants = ['acme']").find("no isolated [[tenant]]"), std::string::npos);
  EXPECT_TRUE(parse_config(
      "[remote]\ntenants = ['acme']\n[[tenant]]\nname = 'acme'\nsalts = ['s']\nisolated = true\n",
      "k"));
}

TEST(ConfigTest, a_mode_is_octal_in_quotes) {
  expect_error("socket_mode = 660\n", "1:15", "\"0660\"");
  expect_error("socket_mode = '0999'\n", "1:15", "\"0660\"");
  expect_error("socket_mode = '01777'\n", "1:15", "\"0660\"");
  EXPECT_EQ(parse_config("socket_mode = '0600'\n", "k").value().socket_mode, 0600U);
}

TEST(ConfigTest, a_number_past_its_range_says_the_range) {
  expect_error("lease_time_ms = 99\n", "1:17", "from 100 to 3600000");
  expect_error("[index]\nblocks_max = 4294967312\n", "2:14", "from 16 to");
}

TEST(ConfigTest, broken_toml_is_an_error_with_its_place) {
  const std::string message = error_of("socket = '/x'\n[host\n");
  EXPECT_TRUE(message.starts_with("k.toml:2:")) << message;
  EXPECT_TRUE(error_of("socket = '/x'\nsocket = '/y'\n").starts_with("k.toml:2:"));
}

TEST(ConfigTest, a_file_that_cannot_be_read_is_named) {
  const auto config = load_config("/nowhere/kvtierd.toml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Errc::io);
  EXPECT_NE(config.error().message.find("/nowhere/kvtierd.toml"), std::string::npos);
  EXPECT_FALSE(load_config("/"));
}

TEST(ConfigTest, what_is_printed_is_read_back_the_same) {
  const std::string defaults = to_toml(Config{});
  EXPECT_EQ(to_toml(parse_config(defaults, "k").value()), defaults);

  Config config;
  config.socket = "/tmp/a \"quoted\" \\ path";
  config.socket_mode = 07;
  config.lease_time = std::chrono::milliseconds(123);
  config.log_level = "warn";
  config.index_blocks_max = 17;
  config.host = {12288, 3_MiB, false, true};
  config.device = {{5_GiB, 64_KiB, false, true}, DeviceBackend::cuda, {3, 0}};
  config.disk = {
      {"/mnt/nvme", "/mnt/other"}, 7_MiB + 4096, 128_KiB, Admission::none, 0, 5, DiskIo::threads};
  const auto again = parse_config(to_toml(config), "k");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(to_toml(*again), to_toml(config));
  EXPECT_EQ(again->socket, config.socket);
  EXPECT_EQ(again->socket_mode, config.socket_mode);
  EXPECT_EQ(again->disk.directories, config.disk.directories);
  EXPECT_EQ(again->disk.capacity_bytes, config.disk.capacity_bytes);
  EXPECT_EQ(again->disk.admission, Admission::none);
  EXPECT_FALSE(again->host.huge_pages);
  EXPECT_TRUE(again->device.prefault);
  EXPECT_EQ(again->device.backend, DeviceBackend::cuda);
  EXPECT_EQ(again->device.gpus, config.device.gpus);
}

}  // namespace
}  // namespace kvtier::daemon
