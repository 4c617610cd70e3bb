#include "engine_adapter/reference/scheduler/fair_queue.h"

#include <algorithm>
#include <limits>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

void FairQueue::push(const std::string& client, const Entry& entry) {
  auto [at, is_new] = clients_.try_emplace(client);
  Client& c = at->second;
  if (c.present == 0) {
    if (!is_new) --idle_;
    auto least = std::numeric_limits<std::int64_t>::max();
    for (const auto& [name, other] : clients_) {
      if (other.present > 0) least = std::min(least, other.served);
    }
    if (least != std::numeric_limits<std::int64_t>::max()) c.served = std::max(c.served, least);
  }
  ++c.present;
  c.entries.insert(entry);
  ++size_;
}

void FairQueue::leave(const std::string& client) {
  Client& c = clients_.at(client);
  KVTIER_CHECK(c.present > c.entries.size());
  if (--c.present > 0) return;
  ++idle_;
  forget_idle();
}

void FairQueue::forget_idle() {
  if (idle_ <= kIdleClientsMax) return;
  auto least = clients_.end();
  for (auto at = clients_.begin(); at != clients_.end(); ++at) {
    if (at->second.present > 0) continue;
    if (least == clients_.end() || at->second.served < least->second.served) least = at;
  }
  clients_.erase(least);
  --idle_;
}

std::optional<FairQueue::Entry> FairQueue::front() const {
  const Client* first = nullptr;
  for (const auto& [name, client] : clients_) {
    if (client.entries.empty()) continue;
    const auto turn = [](const Client& c) { return c.served + c.expected; };
    if (first == nullptr || turn(client) < turn(*first)) first = &client;
  }
  if (first == nullptr) return std::nullopt;
  return *first->entries.begin();
}

void FairQueue::remove(const std::string& client, const Entry& entry) {
  const auto erased = clients_.at(client).entries.erase(entry);
  KVTIER_CHECK(erased == 1);
  --size_;
}

void FairQueue::charge(const std::string& client, std::uint32_t tokens) {
  clients_.at(client).served += tokens;
}

void FairQueue::expect(const std::string& client, std::int64_t tokens) {
  clients_.at(client).expected += tokens;
}

std::int64_t FairQueue::served(const std::string& client) const {
  return clients_.at(client).served;
}

}  // namespace kvtier::engine
