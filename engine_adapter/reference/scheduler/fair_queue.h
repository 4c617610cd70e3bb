// Whose turn it is: clients are served by the tokens that they have had, the least served first, so
// that neither many requests nor long ones keep the others away. A client that comes back starts
// level with the least served of those that are there (Sheng et al., Fairness in Serving Large
// Language Models, 2024). Among one client's requests the higher priority goes first, then the
// earlier.
//
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "engine_adapter/reference/scheduler/request.h"

namespace kvtier::engine {

class FairQueue {
 public:
  struct Entry {
    RequestId id;
    std::int32_t priority = 0;
  };

  // The client is there from push() until the leave() that belongs to it, queued or being served.
  void push(const std::string& client, const Entry& entry);
  void leave(const std::string& client);

  // The next entry, if any waits.
  std::optional<Entry> front() const;
  // Takes an entry out, wherever it stands.
  void remove(const std::string& client, const Entry& entry);
  // `tokens` were computed for the client.
  void charge(const std::string& client, std::uint32_t tokens);
  // `tokens` more (below zero: fewer) are to be computed for requests of the client that were taken
  // out: they count for its turn, but not against those that come later.
  void expect(const std::string& client, std::int64_t tokens);
  // What the client has had; smaller: sooner its turn.
  std::int64_t served(const std::string& client) const;
  std::uint32_t size() const noexcept { return size_; }

 private:
  struct Sooner {
    bool operator()(const Entry& a, const Entry& b) const noexcept {
      return a.priority != b.priority ? a.priority > b.priority : a.id.value < b.id.value;
    }
  };
  struct Client {
    std::int64_t served = 0;
    std::int64_t expected = 0;
    std::uint32_t present = 0;
    std::set<Entry, Sooner> entries;
  };

  void forget_idle();

  std::map<std::string, Client> clients_;
  std::uint32_t size_ = 0;
  std::uint32_t idle_ = 0;
};

}  // namespace kvtier::engine
