// One command for a server, from its asking to its answer. On the store's thread; each is in one
// queue or on one connection at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/remote/redis/reply_reader.h"
#include "storage/remote/redis/timers.h"
#include "storage/remote/remote_backend.h"
#include "storage/remote/remote_value.h"

namespace kvtier::storage {

// One find(): what is known of each key, and how many of the leading ones are.
struct FindState {
  enum class Known : std::uint8_t { no_answer, there, missing };
  std::vector<Known> keys;
  std::size_t leading = 0;
  bool answered = false;
  RemoteStore::Done<std::size_t> done;
  std::optional<Timers::Id> timer;
};

// One erase(): answered when the last of its keys is.
struct EraseState {
  std::vector<Key> failed;
  std::size_t left = 0;
  std::function<void(std::vector<Key>)> done;
};

struct Operation {
  enum class Kind : std::uint8_t {
    exists,
    get,
    set,
    del,
    // The store's own, of one server.
    auth,
    ping,
    slots,
    probe_get,
    probe_set,
    probe_del
  };

  Kind kind = Kind::ping;
  std::string name;  // under which the value is
  std::uint16_t slot = 0;
  Key key{};
  // It has been answered and is only taken out of where it is.
  bool finished = false;
  bool asking = false;  // the server is told that it may serve it though the slot is another's
  unsigned tries = 0;
  std::optional<Timers::Id> timer;

  // get: a value as long as `landing()`. Where it is `apart`, that is memory of the store's own.
  NamespaceId ns{};
  std::span<std::byte> memory;
  bool apart = false;
  bool second_look = false;
  std::vector<std::byte> own;
  std::span<std::byte> landing() noexcept { return apart ? std::span(own) : memory; }

  // set
  BlockIdentity identity{};
  std::span<const std::byte> record;
  ValueForm::Value value;

  std::uint64_t value_bytes = 0;  // that it moves, either way
  std::shared_ptr<FindState> find;
  std::size_t find_index = 0;
  std::shared_ptr<EraseState> erase;
  RemoteStore::Done<void> done;

  bool of_a_record() const noexcept { return kind == Kind::get || kind == Kind::set; }
  bool is_own() const noexcept { return kind >= Kind::auth; }
  bool writes() const noexcept { return kind == Kind::set || kind == Kind::del; }
};
using OperationPtr = std::shared_ptr<Operation>;

// What a server answered.
struct Answer {
  enum class What { nil, integer, status, value, wrong_length, error, array, lost };
  What what = What::lost;
  std::string text{};  // of an error; why the connection was lost
  long long integer = 0;
  Reply array{};
};

}  // namespace kvtier::storage
