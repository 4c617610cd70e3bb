#include "daemon/session/open_namespaces.h"

#include <algorithm>
#include <string>

#include "core/record/digest.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Result<std::uint32_t> OpenNamespaces::open(std::span<const std::byte> encoded, bool makes,
                                           UserId user) {
  if (numbers_.size() == limits::kNamespacesPerSessionMax) {
    return make_error(Errc::no_space, "too many namespaces in one session (" +
                                          std::to_string(limits::kNamespacesPerSessionMax) +
                                          "): open some in another client");
  }
  const auto handle = static_cast<std::uint32_t>(numbers_.size());
  if (!makes && !cache_.knows_namespace(encoded)) {
    if (const auto good = decode_namespace(encoded); !good) return good.error();
    numbers_.push_back(kNotKnown);
    awaited_.emplace(handle, std::vector(encoded.begin(), encoded.end()));
    return handle;
  }
  const auto number = cache_.open_namespace(encoded, user);
  if (!number) return number.error();
  ++cache_.catalogue().namespaces()[*number].opened;
  numbers_.push_back(*number);
  return handle;
}

Result<std::uint16_t> OpenNamespaces::number_of(std::uint32_t handle) {
  if (handle >= numbers_.size())
    return make_error(Errc::malformed, "request: a namespace that was not opened");
  if (const auto awaited = awaited_.find(handle); awaited != awaited_.end()) {
    if (!cache_.knows_namespace(awaited->second)) return kNotKnown;
    const auto number = cache_.open_namespace(awaited->second);
    if (!number) return kNotKnown;  // another that has its id
    ++cache_.catalogue().namespaces()[*number].opened;
    numbers_[handle] = *number;
    awaited_.erase(awaited);
  }
  return numbers_[handle];
}

std::vector<std::uint32_t> OpenNamespaces::handles_of(std::uint16_t ns) const {
  std::vector<std::uint32_t> handles;
  for (std::uint32_t handle = 0; handle < numbers_.size(); ++handle) {
    if (numbers_[handle] == ns) handles.push_back(handle);
  }
  return handles;
}

std::vector<std::uint32_t> OpenNamespaces::close_awaited(const NamespaceFilter& filter) {
  std::vector<std::uint32_t> closed;
  for (const auto& [handle, encoded] : awaited_) {
    KnownNamespace known{};
    known.id = NamespaceId{xxh3_128(encoded)};
    known.encoded = encoded;
    if (const auto ns = decode_namespace(encoded)) known.ns = *ns;
    if (filter.matches(known)) closed.push_back(handle);
  }
  for (const std::uint32_t handle : closed) awaited_.erase(handle);
  return closed;
}

std::uint64_t OpenNamespaces::record_bytes_max() const {
  std::uint64_t largest = 1;
  for (const std::uint16_t ns : numbers_) {
    if (ns == kNotKnown) continue;
    largest = std::max(largest, cache_.catalogue().namespaces()[ns].layout.record_bytes);
  }
  return largest;
}

void OpenNamespaces::close() {
  for (const std::uint16_t ns : numbers_) {
    if (ns != kNotKnown) --cache_.catalogue().namespaces()[ns].opened;
  }
  numbers_.clear();
  awaited_.clear();
}

}  // namespace kvtier::daemon
