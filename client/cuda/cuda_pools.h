// Events and staging memory of one device, made once and used again, because making them may wait
// for the device. Whoever is done gives back by destruction; the pools outlive what they lent.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::transfer {

class CudaPools : public std::enable_shared_from_this<CudaPools> {
 public:
  explicit CudaPools(int device) noexcept : device_(device) {}
  ~CudaPools();
  CudaPools(const CudaPools&) = delete;
  CudaPools& operator=(const CudaPools&) = delete;

  // An event without a time.
  class Event {
   public:
    Event() = default;
    Event(Event&&) noexcept = default;
    Event& operator=(Event&& other) noexcept;
    ~Event() { give_back(); }
    cudaEvent_t get() const noexcept { return event_; }
    explicit operator bool() const noexcept { return pools_ != nullptr; }

   private:
    friend class CudaPools;
    void give_back() noexcept;
    std::shared_ptr<CudaPools> pools_;
    cudaEvent_t event_ = nullptr;
  };

  enum class Kind { host, device };  // pinned host memory that the device reaches, or its own
  class Memory {
   public:
    Memory() = default;
    Memory(Memory&&) noexcept = default;
    Memory& operator=(Memory&& other) noexcept;
    ~Memory() { give_back(); }
    std::byte* get() const noexcept { return data_; }
    explicit operator bool() const noexcept { return data_ != nullptr; }
    template <class T>
    T* at(std::size_t offset) const noexcept {
      return reinterpret_cast<T*>(data_ + offset);
    }

   private:
    friend class CudaPools;
    void give_back() noexcept;
    std::shared_ptr<CudaPools> pools_;
    std::byte* data_ = nullptr;
    Kind kind_ = Kind::host;
    std::size_t size_class_ = 0;
  };

  // With the device current. Errors: io, no_space.
  Result<Event> event();
  Result<Memory> memory(Kind kind, std::size_t bytes);

 private:
  static constexpr std::size_t kSmallest = 16;  // log2 of bytes
  static constexpr std::size_t kClasses = 24;
  using Free = std::array<std::vector<void*>, kClasses>;

  const int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> events_;
  std::array<Free, 2> free_;
};

}  // namespace kvtier::transfer
