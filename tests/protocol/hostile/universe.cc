#include "tests/protocol/hostile/universe.h"

#include <algorithm>
#include <sstream>

namespace kvtier::protocol {
namespace {

struct Shape {
  std::uint32_t layers, heads, dim_k, dim_v;
  StorageFormat format;
};
// Records of 8, 12, 20, 24 (with scales), 132 and 516 KiB.
constexpr Shape kShapes[]{
    {1, 1, 4, 4, StorageFormat::f32},       {1, 1, 160, 160, StorageFormat::f32},
    {1, 1, 512, 512, StorageFormat::f32},   {4, 8, 64, 96, StorageFormat::fp8_e4m3},
    {1, 1, 4096, 4096, StorageFormat::f32}, {4, 1, 4096, 4096, StorageFormat::f32},
};
constexpr std::uint32_t kPrompts = 8;

Namespace shaped(const Shape& shape, const std::string& model, const std::string& salt) {
  Namespace ns = daemon::testing::small_namespace(model);
  ns.tenant = salt;
  ns.layers = shape.layers;
  ns.kv_heads = shape.heads;
  ns.head_dim_k = shape.dim_k;
  ns.head_dim_v = shape.dim_v;
  ns.format = shape.format;
  return ns;
}

}  // namespace

Universe::Universe() {
  const auto add = [&](const Namespace& ns, uid_t only) {
    const auto encoded = encode(ns);
    namespaces_.push_back({ns,
                           id_of(ns),
                           RecordLayout::of(ns),
                           {reinterpret_cast<const char*>(encoded.data()), encoded.size()},
                           only});
  };
  for (const Shape& shape : kShapes) {
    for (const char* model : {"m@1", "m@2", "n@1"}) add(shaped(shape, model, ""), kRoot);
    add(shaped(shape, "m@1", "small"), kRoot);
    add(shaped(shape, "m@1", "apart"), kApart);
  }
  add(daemon::testing::namespace_with_extra("image@1"), kRoot);
  add(daemon::testing::namespace_of_digests("digest@1"), kRoot);
}

std::size_t Universe::pick(Random& random, uid_t user) const {
  // What is another's is asked for now and then. He who is apart stays apart, so that it is known
  // whose memory he is given.
  for (int i = 0; i < 64; ++i) {
    const std::size_t at = random.below(namespaces_.size());
    const uid_t only = namespaces_[at].only;
    const bool mine = user == kApart ? only == kApart : only == kRoot;
    if (mine || (user != kApart && random.one_in(200))) return at;
  }
  return user == kApart ? namespaces_.size() - 1 : 0;
}

std::vector<TestBlock> Universe::prompt(Random& random, std::size_t ns) const {
  const std::uint32_t first = 1 + random.below(kPrompts) * 1000;
  const std::uint32_t blocks = 1 + random.below(random.one_in(4) ? kPromptBlocksMax : 6U);
  const KnownNamespace& of = namespaces_[ns];
  if (of.ns.extra_bytes_max != 0) {
    const char* const image = random.one_in(2) ? "image one" : "another";
    return daemon::testing::blocks_with_extra(of.ns, blocks, first, image);
  }
  if (of.ns.digest_bytes != 0)
    return daemon::testing::blocks_of_digests(of.ns, blocks, first / 1000);
  return daemon::testing::prefix_of(of.id, blocks, first);
}

std::string Universe::odd_namespace(Random& random) const {
  Namespace ns = random.pick(namespaces_).ns;
  std::string text(random.below(random.one_in(8) ? 1200U : 40U), 'x');
  for (char& c : text) c = static_cast<char>(random.one_in(4) ? random.below(256U) : 'a');
  switch (random.below(4U)) {
    case 0:
      ns.tenant = text;
      break;
    case 1:
      ns.model = text;
      break;
    case 2:
      ns.layers = 1 + random.below(3000U);
      ns.head_dim_k = 1 + random.below(6000U);
      ns.kv_heads = 1 + random.below(64U);
      break;
    default:
      ns.adapter = text;
      ns.block_tokens = 1U << random.below(12U);
  }
  if (!ns.validate()) ns = namespaces_[0].ns;
  const auto encoded = encode(ns);
  std::string bytes(reinterpret_cast<const char*>(encoded.data()), encoded.size());
  if (random.one_in(3)) return bytes;
  if (random.one_in(3)) bytes.resize(random.below(bytes.size() + 1));
  if (random.one_in(3)) bytes.append(random.below(random.one_in(20) ? 1'500'000U : 64U), 'z');
  for (std::uint32_t i = random.below(4U); i > 0 && !bytes.empty(); --i)
    bytes[random.below(bytes.size())] = static_cast<char>(random.next());
  return bytes;
}

std::vector<Setting> settings() {
  return {
      {.name = "memory alone"},
      {.name = "one disk, killed half way", .disks = 1, .restarts = true},
      {.name = "two disks, few blocks", .disks = 2, .admission = "second_hit", .blocks_max = 1024},
      {.name = "disk by threads, slow rate",
       .disks = 1,
       .disk_io = "threads",
       .requests_per_second = 20'000},
      {.name = "few descriptors", .disks = 1, .descriptors_max = 160},
  };
}

std::string config_text(const Setting& setting, const Reloadable& now, const std::string& folder,
                        std::uint16_t http_port) {
  std::ostringstream text;
  text << "socket = '" << folder << "/s'\nsocket_mode = '0666'\nlog_level = 'warn'\n"
       << "lease_time_ms = 2000\n[index]\nblocks_max = " << setting.blocks_max << "\n"
       << "[host]\ncapacity = '" << now.host_mib
       << "MiB'\nextent_size = '4MiB'\nhuge_pages = false\n"
       << "[device]\ncapacity = '" << now.device_mib
       << "MiB'\nextent_size = '2MiB'\nhuge_pages = false\ngpus = [0, 1]\n"
       << "[http]\nlisten = '127.0.0.1:" << http_port << "'\n"
       << "[limits]\nsessions_max = 128\nsessions_per_user = 40\nleases_per_session = 256\n"
       << "requests_per_second = " << setting.requests_per_second
       << "\nhello_time_ms = 1000\nframe_time_ms = 1000\nunread_time_ms = 2000\n"
       << "[access]\nread_only_users = [" << kReader << "]\n";
  if (setting.disks > 0) {
    text << "[disk]\ncapacity = '64MiB'\nsegment_size = '4MiB'\nio = '" << setting.disk_io
         << "'\nadmission = '" << now.admission << "'\nscrub_mib_per_s = " << now.scrub_mib_per_s
         << "\ndirectories = [";
    for (std::uint32_t i = 0; i < setting.disks; ++i) text << "'" << folder << "/disk" << i << "',";
    text << "]\n";
  }
  text << "[[tenant]]\nname = 'small'\nquota = { host = '" << now.small_quota_mib
       << "MiB', device = '1MiB' }\n"
       << "[[tenant]]\nname = 'apart'\nusers = [" << kApart
       << "]\nisolated = true\nquota = { host = '25%' }\n"
       << "[[tenant]]\nname = 'honest'\nusers = [" << kHonest << ", " << kRoot
       << "]\nisolated = true\nguaranteed = { host = '25%' }\n";
  return text.str();
}

// 20 and 132 KiB.
Namespace honest_namespace(bool large) {
  return shaped(large ? kShapes[4] : kShapes[2], "honest@1", "honest");
}

}  // namespace kvtier::protocol
