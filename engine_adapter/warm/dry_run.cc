#include "engine_adapter/warm/dry_run.h"

#include "core/terminal/units.h"
#include "engine_adapter/reference/model/weights/capacity.h"

namespace kvtier::warm {

Result<Measure> Measure::load(const std::string& directory, StorageFormat format) {
  auto config = engine::load_model_config(std::filesystem::path(directory) / "config.json");
  if (!config) return config.error();
  auto tokenizer = engine::Tokenizer::load_model(directory);
  if (!tokenizer) return tokenizer.error();
  return Measure{std::move(*config), std::move(*tokenizer), format};
}

Result<DryRun> dry_run(const std::vector<Document>& documents,
                       const std::optional<Measure>& measure,
                       const std::function<void(const std::string&)>& say) {
  DryRun sums;
  std::uint64_t block_bytes = 0;
  if (measure) {
    const auto plan =
        engine::plan_capacity(measure->config, engine::kBlockTokens, {measure->format}, {});
    if (!plan) return plan.error();
    block_bytes = plan->formats.front().block_bytes;
  }
  for (const Document& document : documents) {
    const auto prompt = read_prompt(document);
    if (!prompt) {
      const bool left_out = !document.named && prompt.error().code == Errc::invalid;
      say((left_out ? "left out: " : "cannot be warmed: ") + prompt.error().message);
      if (left_out) {
        ++sums.left_out;
      } else {
        sums.failures.push_back(prompt.error().message);
      }
      continue;
    }
    std::string line = document.path + ": " + ctl::human_bytes(prompt->size()) + " of text";
    if (measure) {
      const auto ids = measure->tokenizer.encode(*prompt);
      const std::size_t tokens =
          ids ? ids->size() + measure->tokenizer.template_prefix().size() : 0;
      if (!ids || tokens >= measure->config.positions_max) {
        const std::string why =
            document.path + ": " +
            (ids ? std::to_string(tokens) + " tokens, and the model takes fewer than " +
                       std::to_string(measure->config.positions_max) + ": split it"
                 : ids.error().message);
        sums.failures.push_back(why);
        say("cannot be warmed: " + why);
        continue;
      }
      const std::uint64_t kv = tokens / engine::kBlockTokens * block_bytes;
      sums.tokens += tokens;
      sums.kv_bytes += kv;
      line += ", " + std::to_string(tokens) + " tokens, " + ctl::human_bytes(kv) + " of KV";
    }
    ++sums.documents;
    sums.text_bytes += prompt->size();
    say(line);
  }
  return sums;
}

}  // namespace kvtier::warm
