// A subscriber of the events that believes nothing but what it is sent: it rebuilds the daemon's
// index from batches, and asks for what it missed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "kvtier/key.h"

namespace kvtier::daemon::testing {

class EventSubscriber {
 public:
  using Json = nlohmann::json;
  struct Seen {
    std::set<std::string> media;
    std::string parent, space, model, adapter;  // parent: a key's bytes
    std::vector<Token> tokens;
    std::uint32_t block_tokens = 0;
  };
  // By a key's bytes, or by the number that stands for it.
  using View = std::map<std::string, Seen>;
  struct Batch {
    std::string topic;
    std::uint64_t number = 0;
    std::string payload;
    Json json() const { return Json::from_msgpack(payload); }
  };

  // `most`: batches that may wait here; `most_of_answers`: likewise, of what it asked for.
  explicit EventSubscriber(const std::string& endpoint, const std::string& replay_endpoint = "",
                           const std::string& topic = "", int most = 100'000,
                           int most_of_answers = 1000);

  // Everything that is there, gone through once; waits for the first of it for at most so long.
  bool read(std::chrono::milliseconds wait);
  // Asks for everything from this number on and takes it in. Returns the numbers that came.
  std::vector<std::uint64_t> ask(std::uint64_t from);
  // The same, without taking it in. None: there was no answer.
  std::optional<std::vector<Batch>> answer(std::uint64_t from);
  void send_request(std::span<const std::string> parts);
  // Reads, and asks where it must, until `holds(view())`; at most 20 seconds. `meanwhile` is called
  // now and then.
  bool comes_to(
      const std::function<bool(const View&)>& holds,
      const std::function<void()>& meanwhile = [] {});

  const View& view() const noexcept { return view_; }
  std::optional<std::uint64_t> last() const noexcept { return last_; }
  std::uint64_t gaps() const noexcept { return gaps_; }
  std::uint64_t clears() const noexcept { return clears_; }

 private:
  void apply(const Batch& batch);
  void apply(const Json& event);

  zmq::context_t context_{1};
  zmq::socket_t live_, replay_;
  View view_;
  std::optional<std::uint64_t> last_;
  std::uint64_t gaps_ = 0, clears_ = 0;
};

}  // namespace kvtier::daemon::testing
