// kvtier-warm: has an engine compute and cache the KV of documents before anybody asks about them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "core/base/shown.h"
#include "core/terminal/terminal.h"
#include "core/terminal/units.h"
#include "engine_adapter/reference/model/weights/capacity.h"
#include "engine_adapter/reference/tokenizer/utf8.h"
#include "engine_adapter/warm/dry_run.h"
#include "engine_adapter/warm/limits.h"
#include "engine_adapter/warm/manifest.h"
#include "engine_adapter/warm/remote_push.h"
#include "engine_adapter/warm/warmer.h"

namespace kvtier::warm {
namespace {

using OutJson = nlohmann::ordered_json;

enum Exit : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kIncomplete = 6,
  kInterrupted = 130,
};

constexpr const char* kExamples = R"(
Examples:
  Every document below a directory, through an engine on this machine:
    kvtier-warm --endpoint http://127.0.0.1:8000 docs/
  What stands in front of them in every prompt, and the tenant whose cache they are for:
    kvtier-warm --endpoint http://127.0.0.1:8000 --prefix-file system.txt --salt team-a \
        'manuals/*.md' faq.txt
  What a manifest lists, eight prompts at a time, with a summary for a program:
    kvtier-warm --endpoint http://engine:8000/v1 --manifest warm.toml --parallel 8 --json
  For every host that shares this one's remote tier:
    kvtier-warm --endpoint http://127.0.0.1:8000 --remote docs/
  How many tokens that would be, and how many bytes in the cache, without a server:
    kvtier-warm --dry-run --tokenizer MODEL_DIRECTORY --manifest warm.toml

Exit status: 0 every document is cached, 1 the server or a file failed and the rest was not done,
2 wrong usage or manifest, 6 some documents failed and are named, 130 interrupted. After any of them
the same command goes on where it was: what is cached is not computed again.
)";

struct Options {
  std::vector<std::string> paths;
  std::string manifest;
  std::string prefix_file;
  std::string endpoint;
  std::string api_key_file;
  Source common;
  std::string tokenizer;
  std::string format = "fp8_e4m3";
  std::uint32_t timeout_s = 600;
  bool dry_run = false;
  bool json = false;
  bool remote = false;
  std::string socket = "/run/kvtier/kvtierd.sock";
  WarmOptions warm;
};

int fail(const Error& error, int code) {
  std::fprintf(stderr, "kvtier-warm: %s\n", shown(error.message).c_str());
  return code;
}

std::string check_format(const std::string& text) {
  const auto format = engine::parse_engine_format(text);
  return format ? std::string{} : format.error().message;
}

// Refuses what cannot stand in JSON.
std::string check_utf8(const std::string& text) {
  return engine::valid_utf8_prefix(text) == text.size() ? std::string{} : "is not UTF-8";
}

void add_options(CLI::App& app, Options& o) {
  app.add_option("path", o.paths, "Files, directories, and patterns such as 'docs/*.md'");
  app.add_option("--manifest", o.manifest, "A TOML or JSON file that lists documents");
  app.add_option("--prefix-file", o.prefix_file,
                 "What stands in front of every document, as it is");
  app.add_option("--salt", o.common.salt, "cache_salt of every prompt: the tenant")
      ->check(check_utf8);
  app.add_option("--endpoint", o.endpoint, "An OpenAI-compatible server: http://HOST:PORT[/v1]");
  app.add_option("--model", o.warm.model,
                 "What the server calls the model; the only one if left out")
      ->check(check_utf8);
  app.add_option("--api-key-file", o.api_key_file,
                 "A file whose first line the server wants as key");
  app.add_option("--parallel", o.warm.parallel, "Prompts under way at once")
      ->check(CLI::Range(1U, kParallelMax))
      ->capture_default_str();
  app.add_option("--block-tokens", o.warm.block_tokens, "Tokens of a block of the engine's cache")
      ->check(CLI::Range(1U, 1024U))
      ->capture_default_str();
  app.add_option("--timeout", o.timeout_s, "Seconds to wait for one answer")
      ->check(CLI::Range(1U, 86'400U))
      ->capture_default_str();
  app.add_flag("--dry-run", o.dry_run, "Send nothing: list documents and bytes");
  app.add_option("--tokenizer", o.tokenizer,
                 "Of --dry-run: the model's directory, to tell tokens and bytes of KV");
  app.add_option("--storage-format", o.format,
                 "Of --dry-run: fp8_e4m3, fp8_e5m2, bf16, f32, int8 or int4")
      ->check(check_format)
      ->capture_default_str();
  app.add_flag("--remote", o.remote,
               "Then have kvtierd write what was computed or used to its remote tier; as an "
               "administrator of it");
  app.add_option("--socket", o.socket, "Of --remote: the daemon's control socket")
      ->capture_default_str();
  app.add_flag("--json", o.json, "The summary as JSON on standard output");
}

Result<std::vector<Document>> gather(const Options& o) {
  Source common = o.common;
  if (!o.prefix_file.empty()) {
    auto prefix = read_prefix(o.prefix_file);
    if (!prefix) return prefix.error();
    common.prefix = std::move(*prefix);
  }
  std::vector<Source> sources;
  if (!o.manifest.empty()) {
    auto listed = load_manifest(o.manifest, common);
    if (!listed) return listed.error();
    sources = std::move(*listed);
  }
  for (const std::string& path : o.paths) {
    sources.push_back({path, common.prefix, common.salt});
  }
  auto documents = find_documents(sources);
  if (documents && documents->empty()) {
    return make_error(Errc::not_found, "there is no file in what was given");
  }
  return documents;
}

int dry(const Options& o, const std::vector<Document>& documents) {
  std::optional<Measure> measure;
  if (!o.tokenizer.empty()) {
    auto loaded = Measure::load(o.tokenizer, parse_storage_format(o.format).value());
    if (!loaded) return fail(loaded.error(), kFailed);
    measure = std::move(*loaded);
  }
  const auto sums = dry_run(documents, measure, [&o](const std::string& line) {
    if (!o.json) std::puts(shown(line).c_str());
  });
  if (!sums) return fail(sums.error(), kFailed);
  if (o.json) {
    OutJson json{{"documents", sums->documents},
                 {"left_out", sums->left_out},
                 {"failures", sums->failures},
                 {"text_bytes", sums->text_bytes},
                 {"tokens", measure ? OutJson(sums->tokens) : OutJson()},
                 {"kv_bytes", measure ? OutJson(sums->kv_bytes) : OutJson()}};
    std::puts(json.dump(2, ' ', false, OutJson::error_handler_t::replace).c_str());
  } else {
    std::string text = std::to_string(sums->documents) + " documents, " +
                       ctl::human_bytes(sums->text_bytes) + " of text";
    if (measure) {
      text += ", " + std::to_string(sums->tokens) + " tokens, at most " +
              ctl::human_bytes(sums->kv_bytes) + " of KV in " + o.format;
    }
    std::puts(text.c_str());
  }
  return sums->failures.empty() ? kDone : kIncomplete;
}

OutJson to_json(const Summary& s, const std::optional<Pushed>& pushed) {
  OutJson json{{"documents", s.documents},
               {"warmed", s.warmed},
               {"cached", s.cached},
               {"too_short", s.too_short},
               {"left_out", s.left_out},
               {"failures", OutJson::array()},
               {"remaining", s.remaining()},
               {"prompt_tokens", s.prompt_tokens},
               {"cached_tokens", s.cached_tokens},
               {"elapsed_ms", s.elapsed.count()},
               {"interrupted", s.interrupted},
               {"error", s.ended ? OutJson(s.ended->message) : OutJson()}};
  if (pushed) json["remote"] = {{"blocks", pushed->blocks}, {"left", pushed->left}};
  for (const Failure& one : s.failures) {
    json["failures"].push_back({{"path", one.path}, {"why", one.why}});
  }
  return json;
}

std::string to_text(const Summary& s) {
  const double seconds = static_cast<double>(std::max<std::int64_t>(s.elapsed.count(), 1)) / 1000;
  std::string text =
      std::to_string(s.documents) + " documents in " +
      ctl::human_duration(static_cast<std::uint64_t>(s.elapsed.count())) + ": " +
      std::to_string(s.warmed) + " warmed, " + std::to_string(s.cached) + " were cached, " +
      std::to_string(s.too_short) + " too short for a block, " + std::to_string(s.left_out) +
      " left out (no text), " + std::to_string(s.failures.size()) + " failed, " +
      std::to_string(s.remaining()) + " not done.\n" +
      std::to_string(s.prompt_tokens - s.cached_tokens) + " tokens computed and " +
      std::to_string(s.cached_tokens) + " found, " +
      ctl::human_rate(static_cast<double>(s.prompt_tokens) / seconds) + " tokens/s.\n";
  if (s.cached_unknown) {
    text +=
        "The server does not say what it had cached (vLLM: --enable-prompt-tokens-details), so "
        "nothing counts as found.\n";
  }
  return text;
}

int report(const Options& o, const Summary& summary, const std::optional<Pushed>& pushed) {
  if (o.json) {
    std::puts(
        to_json(summary, pushed).dump(2, ' ', false, OutJson::error_handler_t::replace).c_str());
  } else {
    std::fputs(to_text(summary).c_str(), stdout);
    if (pushed) {
      std::printf("%llu blocks in the remote tier, %llu not.\n",
                  static_cast<unsigned long long>(pushed->blocks),
                  static_cast<unsigned long long>(pushed->left));
    }
  }
  if (summary.ended) return fail(*summary.ended, kFailed);
  if (summary.interrupted) {
    std::fputs("kvtier-warm: interrupted; the same command goes on from here\n", stderr);
    return kInterrupted;
  }
  const bool whole = summary.failures.empty() && (!pushed || pushed->left == 0);
  return whole ? kDone : kIncomplete;
}

int warm(Options& o, std::vector<Document> documents) {
  auto url = parse_url(o.endpoint);
  if (!url) return fail(url.error(), kUsage);
  o.warm.endpoint.url = std::move(*url);
  o.warm.endpoint.timeout = std::chrono::seconds(o.timeout_s);
  if (!o.api_key_file.empty()) {
    const auto text = engine::read_file(o.api_key_file);
    if (!text) return fail(text.error(), kUsage);
    o.warm.endpoint.api_key = text->substr(0, text->find_first_of("\r\n"));
  }
  ProgressView view(ctl::is_terminal(STDERR_FILENO));
  Warmer warmer(o.warm, std::move(documents), view);
  const Summary summary = warmer.run();
  std::optional<Pushed> pushed;
  if (o.remote) {
    auto done = push_to_remote(o.socket, summary.elapsed);
    if (!done) return fail(done.error(), kFailed);
    pushed = *done;
  }
  return report(o, summary, pushed);
}

int run(int argc, char** argv) {
  CLI::App app("Preloads documents into the cache of an inference engine.", "kvtier-warm");
  app.footer(kExamples);
  app.set_version_flag("--version", "kvtier-warm " KVTIER_VERSION);
  Options o;
  add_options(app, o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  if (o.paths.empty() && o.manifest.empty()) {
    return fail(make_error(Errc::invalid, "what is to be warmed? Give paths or --manifest"),
                kUsage);
  }
  if (o.endpoint.empty() && !o.dry_run) {
    return fail(make_error(Errc::invalid, "through which server? Give --endpoint, or --dry-run"),
                kUsage);
  }
  auto documents = gather(o);
  if (!documents) return fail(documents.error(), kUsage);
  return o.dry_run ? dry(o, *documents) : warm(o, std::move(*documents));
}

}  // namespace
}  // namespace kvtier::warm

int main(int argc, char** argv) {
  try {
    return kvtier::warm::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvtier-warm: %s\n", error.what());
    return 1;
  }
}
