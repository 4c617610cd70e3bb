// Between the structs of kvtier.h and those of the C++ headers.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kvtier/client.h"
#include "kvtier/kvtier.h"

struct kvt_client {
  std::shared_ptr<kvtier::Client> client;
};
struct kvt_cache {
  std::shared_ptr<kvtier::Client> client;  // lives as long as its caches
  std::shared_ptr<kvtier::Cache> cache;
};
struct kvt_prefix {
  kvtier::Prefix prefix;
};
struct kvt_pool {
  kvtier::PagePool pool;
};
struct kvt_lease {
  kvtier::Lease lease;
};
struct kvt_load {
  kvtier::Load load;
};
struct kvt_write_back {
  kvtier::WriteBack write;
};
struct kvt_layer_store {
  kvtier::LayerStore store;
};

namespace kvtier::c {

// Keeps the text for kvt_error(), of this thread.
kvt_code failed(const Error& error) noexcept;
kvt_code failed(Errc code, std::string what) noexcept;
template <class T>
kvt_code code_of(const Result<T>& result) noexcept {
  return result ? KVT_OK : failed(result.error());
}
kvt_code null_argument(const char* what) noexcept;

// A new handle in `*to`.
template <class Handle, class... Parts>
kvt_code give(Handle** to, Parts&&... parts) {
  *to = new Handle{std::forward<Parts>(parts)...};
  return KVT_OK;
}

// `from` with what an older program does not know as in `unset`. Errors: invalid, where it has no
// size, or sets what this library does not know.
template <class T>
Result<T> taken(const T* from, const T& unset, const char* what) {
  const auto invalid = [what](const char* why) {
    return make_error(Errc::invalid, std::string(what) + why);
  };
  if (from == nullptr) return invalid(" is NULL");
  if (from->size < sizeof from->size) return invalid(" has no size; begin with its _INIT");
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  if (from->size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + from->size, [](unsigned char b) { return b != 0; }))
    return invalid(" has fields set that this libkvtier does not know; install a newer one");
  T all = unset;
  std::memcpy(static_cast<void*>(&all), from, std::min(from->size, sizeof(T)));
  return all;
}

// An array whose elements have the size of the first.
template <class T>
Result<std::vector<T>> taken(const T* from, std::size_t count, const T& unset, const char* what) {
  std::vector<T> all;
  if (count == 0) return all;
  if (from == nullptr) return make_error(Errc::invalid, std::string(what) + " is NULL");
  const auto* at = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t i = 0; i < count; ++i, at += from->size) {
    auto one = taken(reinterpret_cast<const T*>(at), unset, what);
    if (!one) return one.error();
    if (one->size != from->size)
      return make_error(Errc::invalid, std::string(what) + " has elements of several sizes");
    all.push_back(*one);
  }
  return all;
}

// What of `all` the program knows.
template <class T>
kvt_code give_struct(const T& all, T* to, const char* what) {
  if (to == nullptr) return null_argument(what);
  const std::size_t size = to->size;
  if (size < sizeof size) return failed(Errc::invalid, std::string(what) + " has no size");
  std::memcpy(static_cast<void*>(to), &all, std::min(size, sizeof(T)));
  to->size = size;
  return KVT_OK;
}

inline Deadline deadline_of(std::int64_t ns) noexcept {
  return Deadline(std::chrono::nanoseconds(ns));
}
inline std::optional<Deadline> slots_by_of(std::int64_t ns) noexcept {
  return ns == 0 ? std::nullopt : std::optional(deadline_of(ns));
}
inline StreamView stream_of(void* stream) noexcept {
  return stream == nullptr ? StreamView() : StreamView(static_cast<CUstream_st*>(stream));
}
// Errors: invalid.
Result<Namespace> namespace_of(const kvt_namespace* from);
Result<DType> dtype_of(kvt_dtype type);
Result<Pages> pages_of(const kvt_pages* from);

}  // namespace kvtier::c
