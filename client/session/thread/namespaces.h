// The namespaces that the engine opened, and their handles on the current connection.
//
// Owned by the session. Any thread may find or add one and list them; all else is the session
// thread's. It holds:
// - There is one entry for a namespace, opened again by itself on every connection, until the
//   daemon closes it: one that has loaded new weights opens the namespace anew, as another entry.
// - Whoever waits for a handle is called once: with it, or with why there is none.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "client/session/namespace_entry.h"
#include "client/session/thread/conversation.h"

namespace kvtier::session {

class Namespaces {
 public:
  using Entry = std::shared_ptr<NamespaceEntry>;

  // `opened`: told of each that is open; `slots_changed`: slots will not come; `refused`: told of
  // each that the daemon does not open.
  Namespaces(Conversation& conversation, std::function<void(const Entry&)> opened,
             std::function<void()> slots_changed, std::function<void(const Entry&)> refused = {})
      : conversation_(conversation),
        opened_(std::move(opened)),
        slots_changed_(std::move(slots_changed)),
        refused_(std::move(refused)) {}

  // Whether it is new. A new one expects slots before anybody sees it: the session's thread may
  // open it at once, and says then that it expects none.
  std::pair<Entry, bool> find_or_add(const Namespace& ns, std::uint32_t slots_ahead);
  std::vector<Entry> all() const;

  void open(const Entry& ns);
  void open_all();
  using Use = std::function<void(Result<std::uint32_t>)>;
  void with_handle(NamespaceEntry& ns, Use use);
  // The daemon has closed it. Null: there is none with that handle.
  Entry close(std::uint32_t handle);
  // The connection has ended.
  void end(const Error& why);

 private:
  Conversation& conversation_;
  const std::function<void(const Entry&)> opened_;
  const std::function<void()> slots_changed_;
  const std::function<void(const Entry&)> refused_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace kvtier::session
