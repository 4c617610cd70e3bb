// The shared memory that a session was given, and what a hostile client does to it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "kvtier/tier.h"
#include "tests/protocol/hostile/random.h"
#include "tests/protocol/tally.h"

namespace kvtier::protocol {

class SeenMemory {
 public:
  // `privileged`: a process that the kernel lets open everything.
  SeenMemory(Tally& tally, bool privileged) : tally_(tally), privileged_(privileged) {}

  // `reader`: it must not be writable. `pool`: of the tenants that the client uses.
  void add(std::uint32_t id, UniqueFd fd, std::uint64_t bytes, std::uint64_t slot_bytes,
           bool reader, std::uint8_t pool);
  void remove(std::uint32_t id) { extents_.erase(id); }
  void clear();
  void set_directory(UniqueFd fd, std::uint64_t bytes);
  bool knows(std::uint64_t slot) const;
  std::vector<std::uint32_t> ids() const;
  // Empty where it cannot be written.
  std::span<std::byte> record(std::uint64_t slot) const;
  bool empty() const noexcept { return extents_.empty(); }

  void scribble(Random& random, std::span<const std::uint64_t> own);
  void punch(Random& random);
  void seal(Random& random);
  void resize(Random& random);
  void advise(Random& random);
  void overreach(Random& random);
  void read_directory(Random& random);
  // While `work` runs, a thread writes to headers of these slots, or of any.
  template <class Work>
  void scribble_while(Random& random, std::span<const std::uint64_t> slots, Work&& work) {
    Scribbler scribbler(*this, random.next(), slots);
    work();
  }

 private:
  struct Extent {
    UniqueFd fd;
    std::shared_ptr<Mapping> memory;  // a thread may still be writing to it; null: cannot be mapped
    std::uint64_t slot_bytes = 0;
    bool writable = false;

    std::span<std::byte> bytes() const { return memory->bytes(); }
  };
  class Scribbler {
   public:
    Scribbler(const SeenMemory& memory, std::uint64_t seed, std::span<const std::uint64_t> slots);
    ~Scribbler();
    Scribbler(const Scribbler&) = delete;

   private:
    struct Shared;
    std::unique_ptr<Shared> shared_;
  };
  Extent* any(Random& random);
  const Extent* any_writable(Random& random) const;
  void must_fail(bool failed, const char* what);

  Tally& tally_;
  bool privileged_;
  std::map<std::uint32_t, Extent> extents_;
  UniqueFd directory_fd_;
  Mapping directory_;
};

}  // namespace kvtier::protocol
