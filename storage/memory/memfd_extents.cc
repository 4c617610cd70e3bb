#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"
#include "core/record/record.h"
#include "storage/memory/extent.h"
#include "storage/memory/huge_page_helper.h"

namespace kvtier::storage {
namespace {

class MemfdExtents final : public MemoryExtents {
 public:
  MemfdExtents(Tier tier, MemfdOptions options) : tier_(tier), options_(options) {
    if (options.huge_pages) helper_.emplace();
  }

  Tier tier() const noexcept override { return tier_; }
  std::uint64_t granularity() const noexcept override { return kRecordAlignment; }

  Result<std::unique_ptr<Extent>> create(ExtentId id, Extent::Shape shape) override {
    KVTIER_CHECK(shape.slot_bytes > 0 && shape.slot_bytes % kRecordAlignment == 0);
    KVTIER_CHECK(shape.bytes >= shape.slot_bytes && shape.bytes % kRecordAlignment == 0);
    auto memory = take_memory(shape.bytes);
    if (!memory) return memory.error();
    auto table = SlotTable::create(slot_table_header(id, tier_, shape, options_.gpu));
    if (!table) return table.error();
    return std::make_unique<Extent>(id, tier_, shape, std::move(memory->fd),
                                    std::move(memory->mapping), std::move(*table));
  }

  void prepare(std::uint64_t bytes, std::uint64_t room) override {
    // Less has no use for huge pages.
    constexpr std::uint64_t kWorthwhile = 16_MiB;
    forget_beyond(room);
    if (!helper_ || bytes < kWorthwhile) return;
    const auto ready =
        static_cast<std::uint64_t>(std::ranges::count(spares_, bytes, &Memory::size));
    for (std::uint64_t more = std::max<std::uint64_t>(kAhead / bytes, 1);
         more > ready && spare_bytes() + bytes <= room &&
         spares_.size() < HugePageHelper::kQueuedMax;
         --more) {
      auto made = make(bytes);
      if (!made) return;  // create() will say why
      helper_->give(made->fd.get(), bytes);
      spares_.push_back(std::move(*made));
    }
  }

  void forget_prepared() override { forget_beyond(0); }

 private:
  // A tier may grow as fast as engines write. What comes with small pages has them for good: rings
  // and GPUs pin it.
  static constexpr std::uint64_t kAhead = 1_GiB;

  struct Memory {
    UniqueFd fd;
    Mapping mapping;
    std::uint64_t size() const noexcept { return mapping.bytes().size(); }
  };

  std::uint64_t spare_bytes() const noexcept {
    std::uint64_t all = 0;
    for (const Memory& spare : spares_) all += spare.size();
    return all;
  }

  // The newest go first: the helper has come least far with them.
  void forget_beyond(std::uint64_t room) {
    const std::size_t before = spares_.size();
    while (!spares_.empty() && spare_bytes() > room) {
      give_back(std::move(spares_.back()));
      spares_.pop_back();
    }
    if (spares_.size() == before) return;
    helper_->stop();
    for (const Memory& spare : spares_) helper_->give(spare.fd.get(), spare.size());
  }

  void give_back(Memory memory) const {
    if (!elsewhere) return;
    elsewhere([last = std::make_shared<Memory>(std::move(memory))] {});
  }

  // Nobody waits for pages here, unless they are wanted at creation: what the helper is still at is
  // used as it is, and the rest of its pages come on first use.
  Result<Memory> take_memory(std::uint64_t bytes) {
    const auto spare = std::ranges::find(spares_, bytes, &Memory::size);
    const bool fits = spare != spares_.end();
    auto memory = fits ? Result<Memory>(std::move(*spare)) : make(bytes);
    if (fits) spares_.erase(spare);
    if (!memory || !options_.prefault) return memory;
    if (options_.huge_pages && !fits) fill_with_huge_pages(memory->mapping.bytes());
    if (const auto done = prefault(memory->mapping.bytes()); !done) return done.error();
    return memory;
  }

  Result<Memory> make(std::uint64_t bytes) const {
    auto fd = make_memfd("kvtier-extent", bytes);
    if (!fd) return fd.error();
    auto mapping = Mapping::map(fd->get(), bytes, Mapping::Access::read_write);
    if (!mapping) return mapping.error();
    if (options_.huge_pages) advise_huge_pages(mapping->bytes());
    return Memory{std::move(*fd), std::move(*mapping)};
  }

  static Result<void> prefault(std::span<std::byte> bytes) {
    int rc = 0;
    do {
      rc = ::madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0 || errno == EINVAL)
      return {};  // EINVAL: a kernel before 5.14; pages come on first use
    const Errc kind = errno == ENOMEM || errno == EFAULT ? Errc::no_space : Errc::io;
    return errno_error(kind,
                       "cannot prefault " + std::to_string(bytes.size()) + " bytes of memory");
  }

  Tier tier_;
  MemfdOptions options_;
  std::optional<HugePageHelper> helper_;
  std::deque<Memory> spares_;  // given to the helper in this order
};

}  // namespace

std::unique_ptr<MemoryExtents> make_memfd_extents(Tier tier, MemfdOptions options) {
  return std::make_unique<MemfdExtents>(tier, options);
}

Result<std::unique_ptr<Extent>> adopt_memfd_extent(UniqueFd memory, UniqueFd table) {
  auto slots = SlotTable::adopt(std::move(table));
  if (!slots) return slots.error();
  const SlotTableHeader& header = slots->header();
  const std::string name = "extent " + std::to_string(header.extent_id);

  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) return errno_error(Errc::io, name + ": fstat");
  if (static_cast<std::uint64_t>(status.st_size) != header.extent_bytes) {
    return make_error(Errc::corrupt, name + ": " + std::to_string(status.st_size) +
                                         " bytes, its slot table says " +
                                         std::to_string(header.extent_bytes));
  }
  // Memory that can shrink under the mapping could kill this process.
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return make_error(Errc::corrupt, name + ": not memory sealed against shrinking");
  }
  // That of an earlier release may lack the last seal; a client that took its memory's future away
  // meanwhile has it fail below.
  if (const auto sealed = seal_memfd(memory.get()); !sealed) return sealed.error();
  auto mapping = Mapping::map(memory.get(), header.extent_bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  const Extent::Shape shape{header.extent_bytes, header.slot_bytes, header.owner};
  if (shape.slots() != header.slots) return make_error(Errc::corrupt, name + ": number of slots");
  const ExtentId id(header.extent_id);
  const auto tier = static_cast<Tier>(header.tier);
  return std::make_unique<Extent>(id, tier, shape, std::move(memory), std::move(*mapping),
                                  std::move(*slots));
}

}  // namespace kvtier::storage
