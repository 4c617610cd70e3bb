#include "engine_adapter/engine/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <set>
#include <utility>

#include "client/base/fd.h"
#include "engine_adapter/engine/json.h"

namespace kvtier::engine {

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return errno_error(errno == ENOENT ? Errc::not_found : Errc::io, path.string());
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(Errc::io, path.string());
  if (!S_ISREG(status.st_mode)) return make_error(Errc::io, path.string() + ": not a file");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) return make_error(Errc::malformed, path.string() + ": the file is empty");
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (at == MAP_FAILED) return errno_error(Errc::io, path.string() + ": cannot be mapped");
  MappedFile file;
  file.bytes_ = {static_cast<const std::byte*>(at), bytes};
  return file;
}

Result<SafeTensors> SafeTensors::open(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  auto tensors = parse_safetensors(file->bytes(), path.string());
  if (!tensors) return tensors.error();
  SafeTensors opened;
  opened.where_ = path.string();
  opened.files_.push_back(std::move(*file));
  opened.tensors_ = std::move(*tensors);
  return opened;
}

namespace {

// The tensors' files by the index, as plain names of files in its folder.
Result<std::map<std::string, std::string>> read_index(const std::filesystem::path& path) {
  const auto index = read_json(path);
  if (!index) return index.error();
  const Json* weight_map = find(*index, "weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    return make_error(Errc::malformed, path.string() + ": weight_map is missing");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos) {
      return make_error(Errc::malformed, path.string() + ": tensor " + tensor + ": " +
                                             shard.dump() + " is not a file name");
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

}  // namespace

Result<SafeTensors> SafeTensors::open_model(const std::filesystem::path& folder) {
  const auto index_path = folder / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_path)) return open(folder / "model.safetensors");
  const auto shards = read_index(index_path);
  if (!shards) return shards.error();
  std::set<std::string> names;
  for (const auto& [tensor, shard] : *shards) names.insert(shard);

  SafeTensors model;
  model.where_ = index_path.string();
  for (const std::string& shard : names) {
    auto part = open(folder / shard);
    if (!part) return part.error();
    for (auto& [tensor, value] : part->tensors_) {
      const auto named = shards->find(tensor);
      if (named == shards->end() || named->second != shard) {
        return make_error(Errc::malformed, (folder / shard).string() + ": tensor " + tensor +
                                               " is not in the index under this file");
      }
      model.tensors_.emplace(tensor, std::move(value));
    }
    model.files_.push_back(std::move(part->files_.front()));
  }
  for (const auto& [tensor, shard] : *shards) {
    if (!model.tensors_.contains(tensor)) {
      return make_error(Errc::malformed,
                        (folder / shard).string() + ": tensor " + tensor + " is missing");
    }
  }
  return model;
}

Result<const Tensor*> SafeTensors::find(std::string_view tensor) const {
  const auto at = tensors_.find(tensor);
  if (at == tensors_.end()) {
    return make_error(Errc::not_found, where_ + ": there is no tensor " + std::string(tensor));
  }
  return &at->second;
}

}  // namespace kvtier::engine
