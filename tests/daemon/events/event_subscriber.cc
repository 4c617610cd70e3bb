#include "tests/daemon/events/event_subscriber.h"

#include <gtest/gtest.h>

#include <chrono>
#include <zmq_addon.hpp>

namespace kvtier::daemon::testing {

namespace {

constexpr std::uint64_t kEnd = ~std::uint64_t{0};
using std::chrono::milliseconds;

std::uint64_t number_of(const zmq::message_t& bytes) {
  EXPECT_EQ(bytes.size(), 8U);
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    number = number << 8 | bytes.data<std::uint8_t>()[i];
  return number;
}

std::string name_of(const nlohmann::json& hash) {
  if (hash.is_null()) return {};
  if (!hash.is_binary()) return std::to_string(hash.get<std::uint64_t>());
  return {hash.get_binary().begin(), hash.get_binary().end()};
}

}  // namespace

EventSubscriber::EventSubscriber(const std::string& endpoint, const std::string& replay_endpoint,
                                 const std::string& topic, int most, int most_of_answers)
    : live_(context_, zmq::socket_type::sub) {
  live_.set(zmq::sockopt::rcvhwm, most);
  live_.set(zmq::sockopt::linger, 0);
  live_.set(zmq::sockopt::subscribe, topic);
  live_.set(zmq::sockopt::reconnect_ivl, 20);
  live_.connect(endpoint);
  if (replay_endpoint.empty()) return;
  replay_ = zmq::socket_t(context_, zmq::socket_type::dealer);
  replay_.set(zmq::sockopt::linger, 0);
  replay_.set(zmq::sockopt::rcvhwm, most_of_answers);
  replay_.set(zmq::sockopt::reconnect_ivl, 20);
  replay_.connect(replay_endpoint);
}

bool EventSubscriber::read(milliseconds wait) {
  std::vector<zmq::pollitem_t> items{{live_.handle(), 0, ZMQ_POLLIN, 0}};
  if (zmq::poll(items, wait) == 0) return false;
  std::vector<zmq::message_t> parts;
  while (zmq::recv_multipart(live_, std::back_inserter(parts), zmq::recv_flags::dontwait)) {
    EXPECT_EQ(parts.size(), 3U);
    const Batch batch{parts[0].to_string(), number_of(parts[1]), parts[2].to_string()};
    parts.clear();
    // What an answer had already.
    if (last_ && batch.number <= *last_) continue;
    if (replay_ && (!last_ || batch.number != *last_ + 1)) {
      gaps_ += last_ ? 1 : 0;
      ask(last_ ? *last_ + 1 : 0);
      if (last_ && batch.number <= *last_) continue;
    }
    apply(batch);
    last_ = batch.number;
  }
  return true;
}

void EventSubscriber::send_request(std::span<const std::string> parts) {
  std::vector<zmq::const_buffer> buffers;
  for (const std::string& part : parts) buffers.push_back(zmq::buffer(part));
  (void)zmq::send_multipart(replay_, buffers);
}

std::optional<std::vector<EventSubscriber::Batch>> EventSubscriber::answer(std::uint64_t from) {
  std::string number(8, '\0');
  for (std::size_t i = number.size(); i-- > 0; from >>= 8)
    number[i] = static_cast<char>(from & 0xFF);
  send_request(std::array<std::string, 2>{"", number});
  std::vector<Batch> batches;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < until) {
    std::vector<zmq::pollitem_t> items{{replay_.handle(), 0, ZMQ_POLLIN, 0}};
    if (zmq::poll(items, milliseconds(100)) == 0) continue;
    std::vector<zmq::message_t> parts;
    (void)zmq::recv_multipart(replay_, std::back_inserter(parts));
    EXPECT_EQ(parts.size(), 4U);
    if (number_of(parts[2]) == kEnd) return batches;
    batches.push_back({parts[1].to_string(), number_of(parts[2]), parts[3].to_string()});
  }
  return std::nullopt;
}

std::vector<std::uint64_t> EventSubscriber::ask(std::uint64_t from) {
  std::vector<std::uint64_t> numbers;
  const auto batches = answer(from);
  if (!batches) return numbers;
  for (const Batch& batch : *batches) {
    apply(batch);
    last_ = batch.number;
    numbers.push_back(batch.number);
  }
  return numbers;
}

bool EventSubscriber::comes_to(const std::function<bool(const View&)>& holds,
                               const std::function<void()>& meanwhile) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds(view_)) {
    if (std::chrono::steady_clock::now() > until) return false;
    meanwhile();
    read(milliseconds(5));
  }
  return true;
}

void EventSubscriber::apply(const Batch& batch) {
  const Json json = batch.json();
  ASSERT_TRUE(json.is_array() && json.size() == 3 && json[0].is_number_float() && json[2] == 0);
  for (const Json& event : json[1]) apply(event);
}

void EventSubscriber::apply(const Json& event) {
  if (event["type"] == "AllBlocksCleared") {
    ++clears_;
    view_.clear();
    return;
  }
  const std::string medium = event["medium"];
  const Json& hashes = event["block_hashes"];
  if (event["type"] == "BlockRemoved") {
    for (const Json& hash : hashes) {
      const auto found = view_.find(name_of(hash));
      if (found == view_.end()) continue;
      found->second.media.erase(medium);
      if (found->second.media.empty()) view_.erase(found);
    }
    return;
  }
  ASSERT_EQ(event["type"], "BlockStored");
  const std::uint32_t block_tokens = event["block_size"];
  const std::vector<Token> tokens = event["token_ids"];
  ASSERT_TRUE(tokens.empty() || tokens.size() == hashes.size() * block_tokens);
  std::string parent = name_of(event["parent_block_hash"]);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    Seen& seen = view_[name_of(hashes[i])];
    seen.media.insert(medium);
    seen.parent = parent;
    seen.space = event["namespace"];
    seen.model = event["model"];
    seen.adapter = event["lora_name"].is_null() ? "" : event["lora_name"].get<std::string>();
    seen.block_tokens = block_tokens;
    if (!tokens.empty()) {
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(i * block_tokens);
      seen.tokens.assign(first, first + block_tokens);
    }
    parent = name_of(hashes[i]);
  }
}

}  // namespace kvtier::daemon::testing
