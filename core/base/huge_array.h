// A fixed array of zero bytes that is reserved at once and touched only where it is used, on huge
// pages where the system gives them: a random access to a large table then costs a cache miss, not
// a page walk as well.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <type_traits>

#include "core/base/check.h"
#include "core/base/fd.h"

namespace kvtier {

template <class T>
class HugeArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  explicit HugeArray(std::size_t size) : bytes_(size * sizeof(T)) {
    void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVTIER_CHECK(at != MAP_FAILED);
    // Refused where huge pages are configured out; small ones work as well. A small array stays on
    // them.
    constexpr std::size_t kWorthwhile = 4U << 20;
    if (bytes_ >= kWorthwhile) (void)::madvise(at, bytes_, MADV_HUGEPAGE);
    data_ = static_cast<T*>(at);
  }
  ~HugeArray() { ::munmap(data_, bytes_); }
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;

  // Gives elements [first, first + count) their memory now. On any thread.
  void populate(std::size_t first, std::size_t count) const noexcept {
    populate_in_pieces(std::as_writable_bytes(std::span(data_ + first, count)));
  }

  T& operator[](std::size_t at) noexcept { return data_[at]; }
  const T& operator[](std::size_t at) const noexcept { return data_[at]; }

 private:
  std::size_t bytes_;
  T* data_;
};

}  // namespace kvtier
