#include "engine_adapter/reference/model/weights/loaded_model.h"

#include <array>
#include <cstring>

#include "core/record/digest.h"
#include "engine_adapter/reference/model/weights/random_weights.h"

namespace kvtier::engine {
namespace {

// XXH3-128 of the files' XXH3-128s, in the order of the files' names, config.json last.
// They are what was read, not what the files hold by now.
std::string digest_of(const SafeTensors& tensors, const std::string& config) {
  std::vector<std::byte> digests;
  const auto add = [&digests](std::span<const std::byte> bytes) {
    const auto digest = xxh3_128(bytes);
    digests.insert(digests.end(), digest.begin(), digest.end());
  };
  for (const FileCopy& file : tensors.files()) add(file.bytes());
  add(std::as_bytes(std::span(config)));
  return to_hex(std::span<const std::byte, 16>(xxh3_128(digests)));
}

// Of what decides random weights' K and V, beside what a namespace tells itself.
std::array<std::byte, 16> digest_of(const ModelConfig& config, std::uint64_t seed) {
  std::uint32_t epsilon;
  std::memcpy(&epsilon, &config.rms_norm_eps, sizeof epsilon);
  std::vector<std::uint64_t> parts{seed,
                                   config.vocab_size,
                                   config.hidden_size,
                                   config.intermediate_size,
                                   config.heads,
                                   config.tied_embeddings,
                                   config.qkv_bias,
                                   config.output_bias,
                                   config.mlp_bias,
                                   config.qk_norm,
                                   epsilon};
  if (config.latent) {
    const LatentShape& latent = *config.latent;
    parts.insert(parts.end(), {latent.q_rank, latent.kv_rank, latent.nope_dim, latent.rope_dim,
                               latent.v_dim, latent.interleaved_rope});
  }
  return xxh3_128(std::as_bytes(std::span(parts)));
}

std::string directory_name(const std::filesystem::path& folder) {
  std::error_code code;
  const auto whole = std::filesystem::canonical(folder, code);
  return (code ? folder : whole).filename().string();
}

std::vector<std::string> notes_on(const ModelConfig& config, const Tokenizer& tokenizer,
                                  const std::string& config_file) {
  std::vector<std::string> notes;
  if (!config.unknown_fields.empty()) {
    std::string note = config_file + ": nothing is done about the fields";
    for (const std::string& field : config.unknown_fields) note += " " + Json(field).dump();
    notes.push_back(note + ", which are not known");
  }
  if (tokenizer.ids_end() > config.vocab_size) {
    notes.push_back("the tokenizer has token ids up to " + std::to_string(tokenizer.ids_end() - 1) +
                    ", the model's vocab_size is " + std::to_string(config.vocab_size) +
                    ": prompts with a token that the model does not have are refused");
  }
  return notes;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const std::filesystem::path& folder) {
  // Read once: what is computed with and what is digested.
  const auto config_file = folder / "config.json";
  const auto config_text = read_file(config_file);
  if (!config_text) return config_text.error();
  const auto config_json = parse_json_file(*config_text, config_file.string());
  if (!config_json) return config_json.error();
  auto config = parse_model_config(*config_json, config_file.string());
  if (!config) return config.error();
  const auto generation = add_generation_config(folder / "generation_config.json", *config);
  if (!generation) return generation.error();
  auto tokenizer = Tokenizer::load_model(folder);
  if (!tokenizer) return tokenizer.error();
  auto tensors = SafeTensors::open_model(folder);
  if (!tensors) return tensors.error();
  auto weights = LlamaWeights::bind(*tensors, *config, kernels::cpu_kernels());
  if (!weights) {
    return make_error(weights.error().code, folder.string() + ": " + weights.error().message);
  }
  auto model = std::make_unique<LoadedModel>();
  model->revision = directory_name(folder) + "@" + digest_of(*tensors, *config_text);
  model->notes = notes_on(*config, *tokenizer, config_file.string());
  model->config = std::move(*config);
  model->tokenizer.emplace(std::move(*tokenizer));
  model->tensors = std::move(*tensors);
  model->weights = std::move(*weights);
  return model;
}

void LoadedModel::let_go_of_weights() {
  weights = {};
  tensors = {};
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::random(const std::string& shape,
                                                         std::uint64_t seed) {
  auto known = random_shape(shape);
  if (!known) return known.error();
  auto model = std::make_unique<LoadedModel>();
  model->config = std::move(known->config);
  model->weights = describe_random_weights(model->config, seed);
  model->random_seed = seed;
  model->revision = "random-" + known->name + "@" + to_hex(digest_of(model->config, seed));
  return model;
}

Result<Namespace> LoadedModel::ns(StorageFormat format, Arithmetic arithmetic) const {
  Namespace ns;
  ns.model = revision + (arithmetic == Arithmetic::bf16 ? " bf16" : "");
  ns.layers = config.kept_layers();
  ns.kv_heads = config.kv_heads;
  ns.head_dim_k = config.head_dim;
  ns.head_dim_v = config.head_dim_v();
  ns.block_tokens = kBlockTokens;
  ns.format = format;
  ns.positions = config.describe_positions();
  if (auto valid = ns.validate(); !valid) return valid.error();
  return ns;
}

}  // namespace kvtier::engine
