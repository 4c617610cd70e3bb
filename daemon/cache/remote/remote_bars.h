// What was erased is not looked for in the remote tier again: an erasure there is best effort, and
// of what this host does not know it erases nothing. What this host writes there later it knows and
// finds. Past a bound of keys their namespace is barred, past one of namespaces everything. Owned
// by the control thread.
#pragma once

#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "core/record/key_hash.h"
#include "storage/index/store_options.h"

namespace kvtier::daemon {

class RemoteBars {
 public:
  static constexpr std::size_t kKeysMax = 1U << 14;
  static constexpr std::size_t kNamespacesMax = 4096;

  void add(std::span<const storage::Erasure> erasures) {
    using Of = storage::Erasure::Of;
    for (const storage::Erasure& erasure : erasures) {
      if (all_) return;
      if (erasure.of == Of::all) {
        bar_all();
      } else if (erasure.of == Of::ns) {
        bar(erasure.ns);
      } else if (!namespaces_.contains(erasure.ns)) {
        keys_.emplace(erasure.key, erasure.ns);
        if (keys_.size() > kKeysMax) bar_those_of_keys();
      }
    }
  }
  // Nothing of it may be looked for.
  bool has(const NamespaceId& ns) const { return all_ || namespaces_.contains(ns); }
  bool has(const Key& key) const { return !keys_.empty() && keys_.contains(key); }
  bool has_keys() const noexcept { return !keys_.empty(); }
  // This host has written it anew.
  void lift(const Key& key) { keys_.erase(key); }

 private:
  void bar(const NamespaceId& ns) {
    namespaces_.insert(ns);
    std::erase_if(keys_, [&](const auto& key) { return key.second == ns; });
    if (namespaces_.size() > kNamespacesMax) bar_all();
  }
  void bar_those_of_keys() {
    for (const auto& [key, ns] : keys_) namespaces_.insert(ns);
    keys_.clear();
    if (namespaces_.size() > kNamespacesMax) bar_all();
  }
  void bar_all() {
    all_ = true;
    namespaces_.clear();
    keys_.clear();
  }

  bool all_ = false;
  std::set<NamespaceId> namespaces_;
  std::unordered_map<Key, NamespaceId, KeyHash> keys_;
};

}  // namespace kvtier::daemon
