#include "storage/remote/redis/servers.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "storage/remote/remote_value.h"

namespace kvtier::storage {
namespace {

// Of a cluster, those of `url` beside it.
constexpr std::size_t kNodesMax = 1100;
constexpr std::chrono::milliseconds kMapAgain{200}, kMapWhileTroubled{500}, kMapAge{10'000};
constexpr std::size_t kTroublesSaid = 3;

// A name that lies in this slot: one in 16,384 does.
std::string probe_name(std::uint16_t slot) {
  const std::string begin = std::string(kValuePrefix) + "probe:";
  for (std::uint64_t number = 0;; ++number) {
    std::string name = begin + std::to_string(number);
    if (key_slot(name) == slot) return name;
  }
}

std::string_view text_of(const redisReply& reply) {
  const bool has_text = reply.type == REDIS_REPLY_STRING || reply.type == REDIS_REPLY_STATUS;
  return has_text ? std::string_view(reply.str, reply.len) : std::string_view();
}

}  // namespace

Servers::Servers(RedisContext& context, OperationOwner& owner)
    : context_(context), owner_(owner), slots_(kClusterSlots, nullptr) {
  for (const RemoteAddress& server : context.url.servers) node_at(server);
}

RedisNode* Servers::node_at(const RemoteAddress& address) {
  for (const auto& node : nodes_) {
    if (node->address() == address) return node.get();
  }
  if (nodes_.size() >= kNodesMax) return nullptr;
  nodes_.push_back(std::make_unique<RedisNode>(context_, owner_, address));
  return nodes_.back().get();
}

bool Servers::is_seed(const RedisNode& node) const {
  return std::ranges::count(context_.url.servers, node.address()) > 0;
}

RedisNode* Servers::alone() const {
  RedisNode* readable = nullptr;
  for (std::size_t i = 0; i < context_.url.servers.size() && i < nodes_.size(); ++i) {
    RedisNode* const node = nodes_[i].get();
    if (node->writable()) return node;
    if (readable == nullptr && node->readable()) readable = node;
  }
  return readable;
}

RedisNode* Servers::serving(std::uint16_t slot) const {
  return mode_ == Mode::cluster ? slots_[slot] : alone();
}

void Servers::take(OperationPtr operation) {
  if (RedisNode* const node = serving(operation->slot)) return node->take(std::move(operation));
  const auto known = health();
  owner_.answered(*nodes_.front(), std::move(operation),
                  {.what = Answer::What::lost,
                   .text = mode_ == Mode::cluster ? "no server of the cluster serves its slot"
                           : known                ? known->why
                                                  : "the remote store is being connected"});
}

void Servers::take_at(const RedisNode& from, RemoteAddress to, OperationPtr operation) {
  if (to.host.empty()) to.host = from.address().host;
  RedisNode* const node = node_at(to);
  if (node == nullptr) {
    return owner_.answered(
        *nodes_.front(), std::move(operation),
        {.what = Answer::What::lost, .text = "the cluster has too many servers"});
  }
  if (!node->has_probe()) node->set_probe(probe_name(operation->slot));
  node->take(std::move(operation));
}

void Servers::take_back(const Operation& operation) {
  for (const auto& node : nodes_) node->take_back(operation);
}

void Servers::note_moved(const RedisNode& from, std::uint16_t slot, RemoteAddress to) {
  if (to.host.empty()) to.host = from.address().host;
  mode_ = Mode::cluster;
  slots_[slot] = node_at(to);
  map_stale_ = true;
  count_unserved();
  if (slots_[slot] != nullptr && !slots_[slot]->has_probe())
    slots_[slot]->set_probe(probe_name(slot));
}

void Servers::slots_known(RedisNode& node, const Answer& answer) {
  map_at_ = context_.now;
  if (answer.what == Answer::What::array) {
    mode_fails_.clear();
    mode_ = Mode::cluster;
    return take_map(node, *answer.array);
  }
  if (answer.what != Answer::What::error) return;
  const ServerError error = classify_error(answer.text);
  if (error.kind == ServerError::Kind::no_cluster && context_.options.cluster) {
    mode_fails_ = node.address().text() +
                  " is not a server of a cluster, which `cluster = true` says that it is";
    return;
  }
  // One that does not let itself be asked may be alone; if it is not, it will say so.
  const bool alone = error.kind == ServerError::Kind::no_cluster ||
                     (error.kind == ServerError::Kind::denied && mode_ == Mode::unknown);
  if (!alone || !is_seed(node)) return;
  mode_fails_.clear();
  mode_ = Mode::alone;
  node.set_probe(std::string(kValuePrefix) + "probe");
}

// A list of [first slot, last slot, [host, port, ...], replicas ...]. A slot is in one of them: a
// map that has more slots than there are would keep this thread busy for as long as a server likes.
void Servers::take_map(RedisNode& from, const redisReply& map) {
  std::fill(slots_.begin(), slots_.end(), nullptr);
  map_stale_ = false;
  long long left = kClusterSlots;
  for (std::size_t i = 0; i < map.elements; ++i) {
    if (!take_range(from, *map.element[i], left)) map_stale_ = true;
  }
  count_unserved();
  set_probes();
}

void Servers::count_unserved() {
  unserved_ = static_cast<std::size_t>(std::ranges::count(slots_, nullptr));
}

// `left`: how many slots the ranges may still have.
bool Servers::take_range(const RedisNode& from, const redisReply& range, long long& left) {
  if (range.type != REDIS_REPLY_ARRAY || range.elements < 3) return false;
  const redisReply& first = *range.element[0];
  const redisReply& last = *range.element[1];
  const redisReply& master = *range.element[2];
  if (first.type != REDIS_REPLY_INTEGER || last.type != REDIS_REPLY_INTEGER ||
      master.type != REDIS_REPLY_ARRAY || master.elements < 2 ||
      master.element[1]->type != REDIS_REPLY_INTEGER) {
    return false;
  }
  const long long port = master.element[1]->integer;
  if (first.integer < 0 || last.integer < first.integer || last.integer >= kClusterSlots ||
      port <= 0 || port > std::numeric_limits<std::uint16_t>::max()) {
    return false;
  }
  const long long slots = last.integer - first.integer + 1;
  if (slots > left) return false;
  left -= slots;
  RemoteAddress address{std::string(text_of(*master.element[0])), static_cast<std::uint16_t>(port)};
  if (address.host.empty() || address.host == "?") address.host = from.address().host;
  RedisNode* const node = node_at(address);
  for (long long slot = first.integer; slot <= last.integer; ++slot)
    slots_[static_cast<std::size_t>(slot)] = node;
  return node != nullptr;
}

void Servers::set_probes() {
  std::unordered_set<const RedisNode*> done;
  for (std::uint16_t slot = 0; slot < kClusterSlots; ++slot) {
    RedisNode* const node = slots_[slot];
    if (node == nullptr || !done.insert(node).second) continue;
    const bool still = node->has_probe() && slots_[key_slot(*node->probe_name())] == node;
    if (!still) node->set_probe(probe_name(slot));
  }
  for (const auto& node : nodes_) {
    if (!done.contains(node.get())) node->set_probe(std::nullopt);
  }
}

// Servers that left the cluster.
void Servers::retire() {
  if (mode_ != Mode::cluster || map_stale_) return;
  for (std::size_t i = nodes_.size(); i-- > context_.url.servers.size();) {
    RedisNode& node = *nodes_[i];
    if (node.has_probe()) continue;
    node.give_up("has left the cluster");
    nodes_.erase(nodes_.begin() + static_cast<long>(i));
  }
}

void Servers::ask_for_map() {
  if (mode_ == Mode::alone) return;
  const bool troubled =
      mode_ == Mode::unknown ||
      std::ranges::any_of(
          nodes_, [](const auto& node) { return node->has_probe() && !node->readable(); }) ||
      unserved_ > 0;
  const auto age = map_stale_ ? kMapAgain : troubled ? kMapWhileTroubled : kMapAge;
  if (context_.now - map_at_ < age) return;
  // One after the other: one that is cut off from the others has an old map.
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    RedisNode& node = *nodes_[++next_asked_ % nodes_.size()];
    if (!node.is_up()) continue;
    node.ask_slots();
    map_at_ = context_.now;
    return;
  }
}

void Servers::turn() {
  ask_for_map();
  retire();
  // A node's turn may bring others.
  for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->turn();
}

Deadline Servers::next_turn() const noexcept {
  Deadline next = mode_ != Mode::alone ? map_at_ + (map_stale_ ? kMapAgain : kMapWhileTroubled)
                                       : Deadline::max();
  next = std::max(next, context_.now + kMapAgain / 4);
  for (const auto& node : nodes_) next = std::min(next, node->next_turn());
  return next;
}

std::optional<Servers::Health> Servers::health() const {
  Health health;
  std::vector<std::string> troubles;
  const auto note = [&](const RedisNode& node) {
    if (std::string why = node.trouble(); !why.empty()) troubles.push_back(std::move(why));
  };
  bool readable = false, writable = false, tried = false;
  if (mode_ != Mode::cluster) {
    const RedisNode* const node = alone();
    readable = node != nullptr;
    writable = readable && node->writable();
    for (std::size_t i = 0; i < context_.url.servers.size(); ++i) {
      tried = tried || nodes_[i]->being_tried();
      if (!writable) note(*nodes_[i]);
    }
  } else {
    for (const auto& node : nodes_) {
      if (!node->has_probe()) continue;
      readable = readable || node->readable();
      writable = writable || node->writable();
      tried = tried || node->being_tried();
      note(*node);
    }
    if (unserved_ > 0)
      troubles.push_back(
          "the cluster has slots that no server serves; redis-cli --cluster fix "
          "gives them to one");
  }
  if (!mode_fails_.empty()) troubles.insert(troubles.begin(), mode_fails_);
  if (!readable && tried && troubles.empty()) return std::nullopt;
  if (!readable && troubles.empty()) troubles.emplace_back("the remote store is being connected");
  health.state = !readable   ? RemoteState::offline
                 : !writable ? RemoteState::read_only
                             : RemoteState::online;
  if (troubles.size() > kTroublesSaid) {
    const std::size_t more = troubles.size() - kTroublesSaid;
    troubles.resize(kTroublesSaid);
    troubles.push_back(std::to_string(more) + " more servers are in trouble");
  }
  for (const std::string& why : troubles) health.why += (health.why.empty() ? "" : "; ") + why;
  return health;
}

}  // namespace kvtier::storage
