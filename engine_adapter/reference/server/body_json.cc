#include "engine_adapter/reference/server/body_json.h"

#include <map>
#include <vector>

#include "engine_adapter/reference/server/limits.h"

namespace kvtier::engine::server {
namespace {

constexpr std::size_t kShownBytesMax = 120;

// The library's own builder looks every key up among those before it.
class Builder final : public nlohmann::json_sax<OrderedJson> {
 public:
  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return count_part() && put(std::move(value)); }
  bool binary(OrderedJson::binary_t&) override { return false; }  // JSON has none

  bool start_object(std::size_t) override { return open(OrderedJson::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(OrderedJson::array()); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    Open& object = open_.back();
    if (!count_part()) return false;
    const auto [at, is_new] = object.keys.try_emplace(name, object.keys.size());
    object.member = at->second;
    if (object.keys.size() > kJsonKeysMax) {
      return refuse("the body has an object of more than " + std::to_string(kJsonKeysMax) +
                    " keys");
    }
    object.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const OrderedJson::exception& error) override {
    return refuse("the body is not JSON: " + shown(std::string(error.what())));
  }

  OrderedJson take() { return std::move(root_); }
  const std::string& refusal() const noexcept { return refusal_; }

 private:
  struct Open {
    OrderedJson* value;
    std::string key{};       // of the next member
    std::size_t member = 0;  // its place: that of the first with its key
    std::map<std::string, std::size_t> keys{};
  };

  bool refuse(std::string why) {
    if (refusal_.empty()) refusal_ = std::move(why);
    return false;
  }
  // A key, a text, a list or an object: what has memory of its own.
  bool count_part() {
    return ++parts_ <= kJsonPartsMax ||
           refuse("the body has more than " + std::to_string(kJsonPartsMax) +
                  " keys, texts, lists and objects");
  }
  OrderedJson* add(OrderedJson value) {
    if (++values_ > kJsonValuesMax) {
      refuse("the body has more than " + std::to_string(kJsonValuesMax) + " values");
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    OrderedJson& into = *open_.back().value;
    if (into.is_array()) {
      into.push_back(std::move(value));
      return &into.back();
    }
    auto& members = into.get_ref<OrderedJson::object_t&>();
    const std::size_t place = open_.back().member;
    if (place < members.size()) {
      (members.data() + place)->second = std::move(value);
    } else {
      members.emplace_back(std::move(open_.back().key), std::move(value));
    }
    return &(members.data() + place)->second;
  }
  bool put(OrderedJson value) { return add(std::move(value)) != nullptr; }
  // What is open stays where it is: its parents get no further members before it is closed.
  bool open(OrderedJson value) {
    if (open_.size() == kJsonDepthMax) return refuse("the body is nested too deeply");
    if (!count_part()) return false;
    OrderedJson* const added = add(std::move(value));
    if (added == nullptr) return false;
    open_.push_back({added});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  OrderedJson root_;
  std::vector<Open> open_;
  std::size_t parts_ = 0;
  std::size_t values_ = 0;
  std::string refusal_;
};

}  // namespace

std::string shown(const std::string& text) {
  if (text.size() <= kShownBytesMax) return text;
  std::size_t end = kShownBytesMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string shown(const OrderedJson& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  if (value.is_string()) return "\"" + shown(value.get_ref<const std::string&>()) + "\"";
  return value.dump();
}

ApiResult<OrderedJson> parse_body(std::string_view body) {
  Builder builder;
  if (!OrderedJson::sax_parse(body, &builder)) return bad_request("", builder.refusal());
  OrderedJson json = builder.take();
  if (!json.is_object()) return bad_request("", "the body is not a JSON object");
  return ApiResult<OrderedJson>(boost::system::in_place_value, std::move(json));
}

}  // namespace kvtier::engine::server
