// Reads tensors from safetensors files: one file, or the shards that a model.safetensors.index.json
// names. They are read once, into memory of this process, and what becomes of the files afterwards
// changes nothing. A file is accepted only if its header describes it completely: every tensor's
// type, shape and bytes agree, and the tensors tile the data section without gap or overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/file_copy.h"
#include "kvtier/result.h"

namespace kvtier::engine {

enum class ElementType : std::uint8_t { f32, f16, bf16, i32 };

const char* name(ElementType type) noexcept;
std::size_t bytes_of(ElementType type) noexcept;

struct Tensor {
  ElementType type;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;  // in the file's copy; aligned only as the file has it

  std::string describe() const;  // "BF16 [2048, 256]"
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
  std::span<const FileCopy> files() const noexcept { return files_; }

  // Errors: not_found.
  Result<const Tensor*> find(std::string_view tensor) const;

 private:
  std::string where_;
  std::vector<FileCopy> files_;
  Tensors tensors_;
};

// The tensors of a safetensors file's bytes. Errors: malformed, naming `where` and the tensor.
Result<SafeTensors::Tensors> parse_safetensors(std::span<const std::byte> file,
                                               const std::string& where);

}  // namespace kvtier::engine
