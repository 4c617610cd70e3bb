#include "client/session/thread/namespaces.h"

#include <algorithm>

#include "client/session/thread/wire_values.h"

namespace kvtier::session {

std::pair<Namespaces::Entry, bool> Namespaces::find_or_add(const Namespace& ns,
                                                           std::uint32_t slots_ahead) {
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find_if(entries_, [&](const auto& e) { return e->ns == ns; });
  if (known != entries_.end()) return {*known, false};
  const auto entry = std::make_shared<NamespaceEntry>(ns, slots_ahead);
  for (SlotPool& pool : entry->pools) pool.expect();
  entries_.push_back(entry);
  return {entry, true};
}

std::vector<Namespaces::Entry> Namespaces::all() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

void Namespaces::open(const Entry& ns) {
  ns->state = NamespaceEntry::State::opening;
  for (SlotPool& pool : ns->pools) pool.expect();
  const auto encoded = encode(ns->ns);
  const auto done = [this, ns](Result<wire::Message::Reader> reply) -> Result<void> {
    for (SlotPool& pool : ns->pools) pool.give_up();
    if (!reply) {
      ns->refuse(reply.error());
      slots_changed_();
      if (refused_) refused_(ns);
      for (auto& use : std::exchange(ns->waiting, {})) use(reply.error());
      return {};
    }
    if (!reply->isOpened()) return malformed("something else than an opened namespace");
    ns->state = NamespaceEntry::State::open;
    ns->handle = reply->getOpened();
    opened_(ns);
    for (auto& use : std::exchange(ns->waiting, {})) use(ns->handle);
    return {};
  };
  conversation_.ask(
      [&](wire::Message::Builder m) { m.setOpenNamespace(data(encoded.data(), encoded.size())); },
      done);
}

void Namespaces::open_all() {
  for (const Entry& ns : all()) open(ns);
}

void Namespaces::with_handle(NamespaceEntry& ns, Use use) {
  if (!conversation_.connection()) return use(not_connected());
  switch (ns.state) {
    case NamespaceEntry::State::open:
      return use(ns.handle);
    case NamespaceEntry::State::refused:
      return use(ns.refusal());
    default:
      ns.waiting.push_back(std::move(use));
  }
}

Namespaces::Entry Namespaces::close(std::uint32_t handle) {
  Entry closed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(entries_, [&](const auto& ns) {
      return ns->state == NamespaceEntry::State::open && ns->handle == handle;
    });
    if (found == entries_.end()) return nullptr;
    closed = *found;
    entries_.erase(found);
  }
  closed->invalidated = true;
  closed->refuse(
      make_error(Errc::refused, "model " + closed->ns.model +
                                    " was invalidated because its weights were updated: load the "
                                    "new ones and open the namespace again"));
  return closed;
}

void Namespaces::end(const Error& why) {
  for (const Entry& ns : all()) {
    for (SlotPool& pool : ns->pools) pool.clear();
    ns->state = NamespaceEntry::State::closed;
    for (auto& use : std::exchange(ns->waiting, {})) use(why);
  }
}

}  // namespace kvtier::session
