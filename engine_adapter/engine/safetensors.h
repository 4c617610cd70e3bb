// Reads tensors from safetensors files, mapped and never copied: one file, or the shards that a
// model.safetensors.index.json names. A file is accepted only if its header describes it
// completely: every tensor's type, shape and bytes agree, and the tensors tile the data section
// without gap or overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::engine {

enum class ElementType : std::uint8_t { f32, f16, bf16, i32 };

const char* name(ElementType type) noexcept;
std::size_t bytes_of(ElementType type) noexcept;

struct Tensor {
  ElementType type;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;  // in the file's mapping; aligned only as the file has it

  std::string describe() const;  // "BF16 [2048, 256]"
};

// A private, read-only mapping of a whole file.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Errors: not_found, io, malformed (an empty file).
  static Result<MappedFile> open(const std::filesystem::path& path);
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

class SafeTensors {
 public:
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  // Errors: not_found, io, malformed; the message names the file and the tensor.
  static Result<SafeTensors> open(const std::filesystem::path& file);
  // model.safetensors in `folder`, or the shards its index names.
  static Result<SafeTensors> open_model(const std::filesystem::path& folder);

  const Tensors& tensors() const noexcept { return tensors_; }
  // The files, in the order of their names.
  std::span<const MappedFile> files() const noexcept { return files_; }

  // Errors: not_found.
  Result<const Tensor*> find(std::string_view tensor) const;

 private:
  std::string where_;
  std::vector<MappedFile> files_;
  Tensors tensors_;
};

// The tensors of a safetensors file's bytes. Errors: malformed, naming `where` and the tensor.
Result<SafeTensors::Tensors> parse_safetensors(std::span<const std::byte> file,
                                               const std::string& where);

}  // namespace kvtier::engine
