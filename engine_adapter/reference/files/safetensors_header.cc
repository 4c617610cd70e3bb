#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "engine_adapter/reference/files/file_kind.h"
#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/files/safetensors.h"

namespace kvtier::engine {
namespace {

// The format's own bound on its header.
constexpr std::uint64_t kHeaderBytesMax = 100'000'000;

std::optional<ElementType> element_type(const std::string& text) {
  for (const auto type :
       {ElementType::f32, ElementType::f16, ElementType::bf16, ElementType::i32}) {
    if (text == name(type)) return type;
  }
  return {};
}

std::optional<std::uint64_t> product(const std::vector<std::uint64_t>& shape, std::uint64_t start) {
  std::uint64_t total = start;
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return {};
  }
  return total;
}

std::optional<std::vector<std::uint64_t>> counts(const Json* array) {
  if (array == nullptr || !array->is_array()) return {};
  std::vector<std::uint64_t> numbers;
  for (const Json& number : *array) {
    if (!number.is_number_unsigned()) return {};
    numbers.push_back(number.get<std::uint64_t>());
  }
  return numbers;
}

Result<Tensor> parse_tensor(const Json& entry, std::span<const std::byte> data,
                            const std::string& where) {
  JsonFields fields(entry, where);
  const std::string type_name = fields.text("dtype");
  if (fields.error()) return *fields.error();
  const auto type = element_type(type_name);
  if (!type) {
    return make_error(
        Errc::malformed,
        where + ": dtype " + type_name +
            " is not one of F32, F16, BF16, I32; quantised weights are not supported");
  }
  const auto shape = counts(find(entry, "shape"));
  if (!shape) return make_error(Errc::malformed, where + ": shape is not an array of counts");
  const auto offsets = counts(find(entry, "data_offsets"));
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    return make_error(Errc::malformed, where + ": data_offsets is not [begin, end]");
  }
  const std::uint64_t begin = (*offsets)[0];
  const std::uint64_t end = (*offsets)[1];
  if (end > data.size()) {
    return make_error(Errc::malformed, where + ": ends at byte " + std::to_string(end) + " of " +
                                           std::to_string(data.size()) +
                                           " data bytes: the file is truncated");
  }
  Tensor tensor{*type, *shape, data.subspan(begin, end - begin)};
  const auto expected = product(*shape, bytes_of(*type));
  if (!expected || *expected != tensor.bytes.size()) {
    return make_error(Errc::malformed, where + ": " + tensor.describe() + " does not fit its " +
                                           std::to_string(tensor.bytes.size()) + " bytes");
  }
  return tensor;
}

Result<void> check_tiling(const SafeTensors::Tensors& tensors, std::span<const std::byte> data,
                          const std::string& where) {
  std::vector<const SafeTensors::Tensors::value_type*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  const auto begin_of = [&data](const auto* entry) {
    return static_cast<std::size_t>(entry->second.bytes.data() - data.data());
  };
  std::sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
    return std::pair(begin_of(a), a->second.bytes.size()) <
           std::pair(begin_of(b), b->second.bytes.size());
  });
  std::size_t covered = 0;
  for (const auto* entry : order) {
    if (begin_of(entry) != covered) {
      return make_error(Errc::malformed,
                        where + ": tensor " + entry->first +
                            (begin_of(entry) < covered ? " overlaps another" : " follows a gap"));
    }
    covered += entry->second.bytes.size();
  }
  if (covered != data.size()) {
    return make_error(Errc::malformed, where + ": " + std::to_string(data.size() - covered) +
                                           " bytes at the end belong to no tensor");
  }
  return {};
}

}  // namespace

const char* name(ElementType type) noexcept {
  switch (type) {
    case ElementType::f32:
      return "F32";
    case ElementType::f16:
      return "F16";
    case ElementType::bf16:
      return "BF16";
    case ElementType::i32:
      return "I32";
  }
  return "?";
}

std::size_t bytes_of(ElementType type) noexcept {
  return type == ElementType::f32 || type == ElementType::i32 ? 4 : 2;
}

std::string Tensor::describe() const {
  std::string text = std::string(name(type)) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Result<SafeTensors::Tensors> parse_safetensors(std::span<const std::byte> file,
                                               const std::string& where) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    return make_error(Errc::malformed, where + ": " + std::to_string(file.size()) +
                                           " bytes are too short for a safetensors file");
  }
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);  // little-endian, as we are
  const auto rest = file.subspan(sizeof header_bytes);
  const auto refuse = [&](const std::string& why) {
    const auto other = kind_of_weights(file);
    return make_error(Errc::malformed, where + ": " + (other ? "is " + *other : why));
  };
  if (header_bytes > kHeaderBytesMax) {
    return refuse("not a safetensors file: its header would be " + std::to_string(header_bytes) +
                  " bytes");
  }
  if (header_bytes > rest.size()) {
    return refuse("truncated: the header is " + std::to_string(header_bytes) +
                  " bytes, the file has " + std::to_string(rest.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  const auto header = parse_json(text, "header");
  if (!header) return refuse(header.error().message);
  if (!header->is_object()) return refuse("header: not an object");

  const auto data = rest.subspan(header_bytes);
  SafeTensors::Tensors tensors;
  for (const auto& [tensor_name, entry] : header->items()) {
    if (tensor_name == "__metadata__") continue;
    auto tensor = parse_tensor(entry, data, where + ": tensor " + tensor_name);
    if (!tensor) return tensor.error();
    tensors.emplace(tensor_name, std::move(*tensor));
  }
  if (const auto tiled = check_tiling(tensors, data, where); !tiled) return tiled.error();
  return tensors;
}

}  // namespace kvtier::engine
