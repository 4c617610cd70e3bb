// What a hostile session makes of the daemon's messages, and what none of them may say: a breach is
// a failure of the run. Owned by the session.
#pragma once

#include <cstdint>
#include <map>

#include "core/wire/frame.h"
#include "tests/protocol/hostile/belongings.h"

namespace kvtier::protocol {

// What was asked, as far as its answer can be told wrong.
struct Asked {
  wire::Message::Which what = wire::Message::ERROR;
  std::size_t ns = 0;
  std::uint32_t count = 0;
  Tier tier = Tier::host;
};

class Answers {
 public:
  // All outlive it.
  Answers(const Who& who, const Universe& universe, Tally& tally, Belongings& has)
      : who_(who), universe_(universe), tally_(tally), has_(has) {}
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // An answer with this id will be `asked`'s; nothing comes of the answer to one that is unknown.
  void expect(std::uint64_t id, const Asked& asked);
  void forget(std::uint64_t id) { asked_.erase(id); }
  void clear() { asked_.clear(); }
  bool any() const noexcept { return !asked_.empty(); }

  void take(wire::Frame& frame);

 private:
  using Reader = wire::Message::Reader;

  void take_message(Reader message, wire::Frame& frame);
  void take_event(Reader message, wire::Frame& frame);
  void take_answer(Reader message, const Asked& asked);
  void take_welcome(Reader message, wire::Frame& frame);
  void take_lease(wire::Leased::Reader leased, const Asked& asked);
  void take_slots(capnp::List<std::uint64_t>::Reader slots, const Asked& asked);
  void named(std::uint64_t slot, const char* where);

  const Who& who_;
  const Universe& universe_;
  Tally& tally_;
  Belongings& has_;
  std::map<std::uint64_t, Asked> asked_;
};

}  // namespace kvtier::protocol
