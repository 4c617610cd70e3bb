#include "engine_adapter/reference/model/weights/layer_sharing.h"

#include <string>

namespace kvtier::engine {

// Gemma 3n: the last num_kv_shared_layers attend to what the last layer of their type has that
// comes before them all. Hunyuan-Large, cross-layer attention (CLA): groups of cla_share_factor
// layers attend to what their first has.
void read_sharing(const Json& json, ModelConfig& config, JsonFields& fields) {
  const std::uint32_t shared = fields.count("num_kv_shared_layers", 0);
  const bool cla = fields.flag("use_cla", false);
  const std::uint32_t factor = cla ? fields.count("cla_share_factor") : 1;
  if (fields.error() || (shared == 0 && factor == 1)) return;
  const auto refuse = [&](const std::string& what) { fields.fail(Errc::invalid, what); };
  if (config.latent) return refuse("layers that share K and V have no latent attention here");
  if (shared != 0 && cla) return refuse("num_kv_shared_layers and use_cla are both given");
  if (factor == 0) return refuse("cla_share_factor must be 1 or above");
  if (shared >= config.layers) {
    return refuse("num_kv_shared_layers is " + std::to_string(shared) + " of " +
                  std::to_string(config.layers) + " layers: the first has none to share with");
  }
  const auto types = json.find("layer_types");
  const auto alike = [&](std::uint32_t a, std::uint32_t b) {
    return types == json.end() || types->is_null() ? config.window(a) == config.window(b)
                                                   : (*types)[a] == (*types)[b];
  };
  const std::uint32_t own = config.layers - shared;
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    std::uint32_t source = layer - layer % factor;
    if (layer >= own) {
      source = own;
      while (source > 0 && !alike(source - 1, layer)) --source;
      if (source-- == 0) {
        return refuse("layer " + std::to_string(layer) +
                      " is to share K and V with one of its type, of which none has its own");
      }
    }
    config.kv_source.push_back(source);
  }
}

std::uint32_t ModelConfig::kept_layers() const noexcept {
  std::uint32_t kept = 0;
  for (std::uint32_t layer = 0; layer < layers; ++layer) kept += has_own_kv(layer) ? 1 : 0;
  return kept;
}

std::uint32_t ModelConfig::kept_layer(std::uint32_t layer) const noexcept {
  if (kv_source.empty()) return layer;
  std::uint32_t place = 0;
  for (std::uint32_t before = 0; before < kv_source[layer]; ++before) {
    place += has_own_kv(before) ? 1 : 0;
  }
  return place;
}

bool ModelConfig::looks_back() const noexcept {
  std::uint32_t last = 0;
  for (std::uint32_t layer = 0; layer < kv_source.size(); ++layer) {
    if (has_own_kv(layer)) last = layer;
    if (kv_source[layer] != last) return true;
  }
  return false;
}

}  // namespace kvtier::engine
