#include "engine_adapter/reference/files/file_kind.h"

#include <algorithm>
#include <string_view>

#include "engine_adapter/reference/files/json.h"

namespace kvtier::engine {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kLookedAt = 4096;
constexpr std::size_t kShown = 60;

constexpr const char* kPointer =
    "a Git LFS pointer and not the file itself: run 'git lfs pull' where it was cloned, or "
    "download the file";
constexpr const char* kWebPage =
    "a web page, as a failed download leaves it: download the file again, with its own address "
    "and, where it needs one, a token";
constexpr const char* kPickle =
    "a PyTorch checkpoint (pickle) and no safetensors file: save_pretrained() of the transformers "
    "library writes model.safetensors";
constexpr const char* kCompressed = "compressed: unpack it first";

struct Magic {
  std::string_view begins;
  const char* kind;
};
constexpr Magic kMagic[] = {
    {"version https://git-lfs.github.com/spec/"sv, kPointer},
    {"PK\x03\x04"sv,
     "a zip archive, as PyTorch writes its checkpoints, and no safetensors file: "
     "save_pretrained() of the transformers library writes model.safetensors"},
    {"\x80\x02"sv, kPickle},
    {"\x80\x03"sv, kPickle},
    {"\x80\x04"sv, kPickle},
    {"\x80\x05"sv, kPickle},
    {"GGUF"sv, "a GGUF file, which is llama.cpp's: take the model in Hugging Face form"},
    {"\x1F\x8B"sv, kCompressed},
    {"\xFD\x37zXZ"sv, kCompressed},
    {"\x28\xB5\x2F\xFD"sv, kCompressed},
    {"BZh"sv, kCompressed},
    {"7z\xBC\xAF"sv, kCompressed},
    {"\x89HDF\r\n"sv, "an HDF5 file: take the model in Hugging Face form, as safetensors"},
    {"\x93NUMPY"sv, "a NumPy array: take the model in Hugging Face form, as safetensors"},
};

bool begins_as_page(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  std::string lower(text.substr(first, 16));
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower.starts_with("<!doctype") || lower.starts_with("<html") ||
         lower.starts_with("<?xml") || lower.starts_with("<head");
}

std::string_view beginning_of(std::span<const std::byte> file) {
  return {reinterpret_cast<const char*>(file.data()), std::min(file.size(), kLookedAt)};
}

}  // namespace

std::optional<std::string> kind_of(std::span<const std::byte> file) {
  std::string_view text = beginning_of(file);
  if (text.empty()) return "empty, as a failed download leaves it";
  if (std::ranges::all_of(text, [](char c) { return c == '\0'; })) {
    return "nothing but zeros at its beginning, as an unfinished download leaves it";
  }
  for (const Magic& magic : kMagic) {
    if (text.starts_with(magic.begins)) return magic.kind;
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (begins_as_page(text)) return kWebPage;
  return {};
}

std::optional<std::string> kind_of_weights(std::span<const std::byte> file) {
  if (auto known = kind_of(file)) return known;
  const std::string_view text = beginning_of(file).substr(0, kShown);
  const bool printable = std::ranges::all_of(
      text, [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t'; });
  if (!printable) return {};
  return "a text and no safetensors file; it begins with " + Json(text).dump();
}

}  // namespace kvtier::engine
