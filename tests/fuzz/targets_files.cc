// Files and shared memory: the configuration, slot tables, segments.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "core/base/check.h"
#include "core/record/digest.h"
#include "daemon/config/config.h"
#include "storage/index/segments.h"
#include "storage/memory/extent.h"
#include "tests/fuzz/targets.h"

namespace kvtier::fuzz {
namespace {

void run_config(std::span<const std::byte> bytes) {
  const auto config = daemon::parse_config(text_of(bytes), "fuzz.toml");
  if (!config) return KVTIER_CHECK(!config.error().message.empty());
  // What was accepted is printed so that it is accepted again, and the same.
  const std::string printed = daemon::to_toml(*config);
  const auto again = daemon::parse_config(printed, "printed.toml");
  KVTIER_CHECK(again.has_value() && daemon::to_toml(*again) == printed);
}

std::vector<Bytes> config_seeds() {
  const std::vector<Bytes> right{
      bytes_of(daemon::to_toml(daemon::Config{})),
      bytes_of("socket = '/s'\n[host]\ncapacity = '4MiB'\n[device]\ngpus = [0, 1]\n"
               "[disk]\ndirectories = ['/a', '/b']\nadmission = 'none'\n"),
      bytes_of("[access]\nadmin_group = 5\nread_only_users = ['a', 7]\n"
               "[[tenant]]\nname = 'a'\nsalts = ['x']\nusers = [1]\nisolated = true\n"
               "quota = { host = '25%', disk = 5 }\nguaranteed = { host = '1%' }\n")};
  for (const Bytes& bytes : right)
    KVTIER_CHECK(daemon::parse_config(text_of(bytes), "seed").has_value());
  return right;
}

UniqueFd memory_of(std::span<const std::byte> bytes) {
  UniqueFd fd = make_memfd("fuzz", bytes.size()).value();
  KVTIER_CHECK(::pwrite(fd.get(), bytes.data(), bytes.size(), 0) ==
               static_cast<ssize_t>(bytes.size()));
  return fd;
}

void run_slot_table(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kMemoryMax = 16U << 20;
  auto table = storage::SlotTable::adopt(memory_of(bytes));
  if (!table) return;
  // What is adopted can be used.
  const storage::SlotTableHeader header = table->header();
  std::uint32_t in_use = 0;
  for (std::uint32_t slot = 0; slot < header.slots; ++slot)
    in_use += table->entry(slot).state == storage::SlotState::free ? 0 : 1;
  KVTIER_CHECK(in_use <= header.slots);
  if (header.extent_bytes > kMemoryMax) return;
  auto memory = make_memfd("fuzz-extent", header.extent_bytes);
  if (!memory) return;
  const auto extent = storage::adopt_memfd_extent(std::move(*memory), memory_of(bytes));
  if (!extent) return;
  for (std::uint32_t slot = 0; slot < (*extent)->shape().slots(); ++slot)
    KVTIER_CHECK((*extent)->slot(slot).size() == header.slot_bytes);
}

std::vector<Bytes> slot_table_seeds() {
  const storage::Extent::Shape shape{64U << 10, 8192};
  auto table = storage::SlotTable::create(
                   storage::slot_table_header(storage::ExtentId(7), Tier::host, shape))
                   .value();
  table.set_reserved(0, {1, 2, 3});
  table.set_sealed(0, {});
  table.set_reserved(1, {1, 2, 3});
  table.set_reserved(2, {1, 2, 3});
  table.set_quarantined(2);
  Bytes bytes(sizeof(storage::SlotTableHeader) + shape.slots() * sizeof(storage::SlotEntry));
  KVTIER_CHECK(::pread(table.fd(), bytes.data(), bytes.size(), 0) ==
               static_cast<ssize_t>(bytes.size()));
  KVTIER_CHECK(storage::SlotTable::adopt(memory_of(bytes)).has_value());
  return {bytes};
}

constexpr std::uint64_t kSegmentBytes = 64U << 10;

// For as long as the process lives.
std::filesystem::path segments_directory() {
  struct Folder {
    std::filesystem::path path;
    Folder() {
      std::string pattern =
          (std::filesystem::temp_directory_path() / "kvtier-fuzz-XXXXXX").string();
      KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
      path = pattern;
    }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  return folder.path;
}

// The first byte says whether magic and checksum are put right, so that what is behind them is
// reached.
void run_segment(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  storage::SegmentHeader header{};
  const auto given = bytes.subspan(1);
  std::memcpy(&header, given.data(), std::min(given.size(), sizeof header));
  if ((bytes[0] & std::byte{1}) != std::byte{0}) {
    header.magic = storage::kSegmentMagic;
    header.checksum = 0;
    header.checksum = xxh3_64(std::as_bytes(std::span(&header, 1)));
  }
  const std::filesystem::path file = segments_directory() / "segments" / "000001.seg";
  std::filesystem::create_directories(file.parent_path());
  {
    const UniqueFd fd(::open(file.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
    KVTIER_CHECK(fd && ::ftruncate(fd.get(), kSegmentBytes) == 0);
    KVTIER_CHECK(::pwrite(fd.get(), &header, sizeof header, 0) ==
                 static_cast<ssize_t>(sizeof header));
  }
  storage::Segments segments(segments_directory(), storage::StoreId{}, kSegmentBytes, 4);
  KVTIER_CHECK(segments.load().has_value());
  const std::uint64_t slot_bytes = segments.slot_bytes_of(1);
  KVTIER_CHECK(slot_bytes < kSegmentBytes);
  KVTIER_CHECK(slot_bytes == 0 || segments.holds({1, 0}, slot_bytes));
}

std::vector<Bytes> segment_seeds() {
  std::vector<Bytes> seeds;
  for (const std::uint64_t slot_bytes : {4096U, 8192U, 61440U}) {
    storage::SegmentHeader header{
        storage::kSegmentMagic, storage::kSegmentVersion, 1, slot_bytes, kSegmentBytes, {}, 0};
    Bytes bytes{std::byte{1}};
    const auto raw = std::as_bytes(std::span(&header, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    seeds.push_back(bytes);
  }
  return seeds;
}

}  // namespace

Target config() {
  return {"config", run_config, config_seeds};
}
Target slot_table() {
  return {"slot_table", run_slot_table, slot_table_seeds};
}
Target segment() {
  return {"segment", run_segment, segment_seeds};
}

}  // namespace kvtier::fuzz
