#include "engine_adapter/reference/files/safetensors.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine_adapter/reference/files/json.h"

namespace kvtier::engine {

Result<SafeTensors> SafeTensors::open(const std::filesystem::path& path) {
  auto file = FileCopy::read(path);
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

// A folder without model.safetensors: what weights it has instead.
Error without_safetensors(const std::filesystem::path& folder) {
  const std::string what = folder.string() + ": has no model.safetensors";
  std::vector<std::string> others;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const auto ending = entry.path().extension();
    for (const char* known : {".bin", ".gguf", ".h5", ".msgpack", ".pt", ".pth", ".safetensors"}) {
      if (ending == known) others.push_back(entry.path().filename().string());
    }
  }
  if (others.empty()) return make_error(Errc::not_found, what);
  return make_error(Errc::not_found,
                    what + " but " + *std::ranges::min_element(others) +
                        ": weights are read from model.safetensors or the shards of "
                        "model.safetensors.index.json; save_pretrained() of the transformers "
                        "library writes them");
}

}  // namespace

Result<SafeTensors> SafeTensors::open_model(const std::filesystem::path& folder) {
  const auto index_path = folder / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_path)) {
    const auto whole = folder / "model.safetensors";
    if (!std::filesystem::exists(whole)) return without_safetensors(folder);
    return open(whole);
  }
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
