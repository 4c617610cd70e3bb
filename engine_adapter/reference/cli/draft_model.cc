#include "engine_adapter/reference/cli/command.h"

namespace kvtier::engine::cli {
namespace {

// The draft model's ids are fed to the model, and the other way round.
Result<void> check_tokens(const LoadedModel& loaded, const LoadedModel& draft,
                          const std::string& directory) {
  const auto differs = [&](const std::string& how) {
    return make_error(Errc::invalid, directory + ": proposes for another model than this one: " +
                                         how + "; a draft model has the tokenizer of its model");
  };
  if (draft.config.vocab_size != loaded.config.vocab_size) {
    return differs("it has " + std::to_string(draft.config.vocab_size) + " tokens and not " +
                   std::to_string(loaded.config.vocab_size) + " (vocab_size in its config.json)");
  }
  for (Token token = 0; loaded.tokenizer && token < loaded.config.vocab_size; ++token) {
    if (draft.tokenizer->bytes_of(token) == loaded.tokenizer->bytes_of(token)) continue;
    return differs("token " + std::to_string(token) + " is \"" +
                   std::string(draft.tokenizer->bytes_of(token)) + "\" and not \"" +
                   std::string(loaded.tokenizer->bytes_of(token)) + "\"");
  }
  return {};
}

}  // namespace

void SpeculateOptions::add_to(CLI::App& command) {
  command
      .add_option("--speculate", speculate,
                  "Propose tokens of answers and compute them in one step, with the same answers: "
                  "ngram (what followed the last tokens where they came before), draft (what "
                  "--draft-model would answer); ngram:N or draft:N: N tokens at most")
      ->check(check_speculation);
  command
      .add_option("--draft-model", draft_model,
                  "Directory of a small model with the same tokenizer, for --speculate draft")
      ->check(CLI::ExistingDirectory);
}

Result<void> SpeculateOptions::validate() const {
  const bool drafts = SpeculationOptions::parse(speculate).value().by_draft;
  if (drafts && draft_model.empty()) {
    return make_error(Errc::invalid, "--speculate draft needs a --draft-model");
  }
  if (!drafts && !draft_model.empty()) {
    return make_error(Errc::invalid, "--draft-model is for --speculate draft");
  }
  return {};
}

Result<std::unique_ptr<DraftModel>> DraftModel::load(const SpeculateOptions& options,
                                                     const LoadedModel& loaded,
                                                     const InstanceOptions& like) {
  if (options.draft_model.empty()) return std::unique_ptr<DraftModel>{};
  auto draft = LoadedModel::load(options.draft_model);
  if (!draft) return draft.error();
  if (const auto same = check_tokens(loaded, **draft, options.draft_model); !same) {
    return same.error();
  }
  InstanceOptions own = like;
  own.pool_tokens = settled(loaded.config, like).pool_tokens;
  own.memory_utilization = 0;  // the large one's pages get what is left
  auto instance = Instance::make(**draft, own);
  if (!instance) return instance.error();
  if (own.device.cuda) (*draft)->let_go_of_weights();
  return std::make_unique<DraftModel>(DraftModel{std::move(*draft), std::move(*instance)});
}

SpeculationOptions speculation_of(const SpeculateOptions& options, const DraftModel* draft) {
  SpeculationOptions made = SpeculationOptions::parse(options.speculate).value();
  if (draft == nullptr) return made;
  made.draft = draft->instance.model.get();
  made.draft_pool = draft->instance.pool.get();
  return made;
}

}  // namespace kvtier::engine::cli
