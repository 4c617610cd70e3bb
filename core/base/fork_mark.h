// Whether this process is a fork of the one in which something was made. Threads do not come along,
// and their locks stay as they were at that moment: what depends on either is not to be touched in
// the child, not even to take it apart, and is kept for ever there.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace kvtier {

class ForkMark {
 public:
  ForkMark() : generation_(current().load(std::memory_order_relaxed)) {}

  bool forked() const noexcept { return current().load(std::memory_order_relaxed) != generation_; }

  // Never destroyed, in this process.
  template <class T>
  static void keep(std::shared_ptr<T> what) {
    struct Kept {
      std::shared_ptr<T> what;
      Kept* next;
    };
    static std::atomic<Kept*> all{nullptr};
    auto* const one = new Kept{std::move(what), all.load()};
    while (!all.compare_exchange_weak(one->next, one)) {
    }
  }

 private:
  // How many forks lie between this process and the first that had a mark.
  static std::atomic<std::uint64_t>& current() noexcept {
    static std::atomic<std::uint64_t> generation{0};
    static const int registered = ::pthread_atfork(
        nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    (void)registered;
    return generation;
  }

  std::uint64_t generation_;
};

}  // namespace kvtier
