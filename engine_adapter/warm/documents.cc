#include "engine_adapter/warm/documents.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <tuple>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/reference/tokenizer/utf8.h"
#include "engine_adapter/warm/limits.h"

namespace kvtier::warm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

Error io_error(const std::string& path, const std::error_code& code) {
  return make_error(Errc::io, path + ": " + code.message());
}

Result<std::vector<std::string>> files_below(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code code;
  fs::recursive_directory_iterator at(directory, code);
  for (; !code && at != fs::recursive_directory_iterator(); at.increment(code)) {
    if (at->path().filename().native().starts_with('.')) {
      at.disable_recursion_pending();
      continue;
    }
    std::error_code unreadable;  // a link to nothing is not a file
    if (at->is_regular_file(unreadable)) files.push_back(at->path().string());
  }
  if (code) return io_error(directory, code);
  std::ranges::sort(files);
  return files;
}

Result<std::vector<std::string>> matches_of(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == 0) return paths;
  if (status == GLOB_NOMATCH) {
    return make_error(Errc::not_found, "'" + pattern + "' matches no file");
  }
  return make_error(Errc::io, "'" + pattern + "': the pattern cannot be followed");
}

// The documents of all sources, each once.
class Collection {
 public:
  Result<void> add_path(const Source& source, const std::string& path) {
    std::error_code code;
    if (!fs::is_directory(path, code)) return add_file(source, path, true);
    const auto files = files_below(path);
    if (!files) return files.error();
    for (const std::string& file : *files) {
      if (auto added = add_file(source, file, false); !added) return added;
    }
    return {};
  }
  std::vector<Document> take() { return std::move(documents_); }

 private:
  Result<void> add_file(const Source& source, const std::string& path, bool named) {
    const std::string plain = fs::path(path).lexically_normal().string();
    const std::string prefix = source.prefix ? *source.prefix : std::string{};
    std::error_code code;
    // Links of either kind lead to the same file.
    struct stat file {};
    if (::stat(plain.c_str(), &file) != 0)
      return io_error(plain, std::error_code(errno, std::generic_category()));
    if (!seen_.emplace(file.st_dev, file.st_ino, prefix, source.salt).second) return {};
    const std::uint64_t bytes = fs::file_size(plain, code);
    if (code) return io_error(plain, code);
    if (documents_.size() == kDocumentsMax) {
      return make_error(Errc::no_space, "more than " + std::to_string(kDocumentsMax) +
                                            " documents: warm them in several runs");
    }
    documents_.push_back({plain, source.prefix, source.salt, bytes + prefix.size(), named});
    return {};
  }

  std::set<std::tuple<dev_t, ino_t, std::string, std::string>> seen_;
  std::vector<Document> documents_;
};

}  // namespace

Result<std::vector<Document>> find_documents(const std::vector<Source>& sources) {
  Collection all;
  for (const Source& source : sources) {
    std::error_code code;
    std::vector<std::string> paths{source.path};
    if (!fs::exists(source.path, code)) {
      if (source.path.find_first_of("*?[") == std::string::npos) {
        return make_error(Errc::not_found, source.path + ": no such file or directory");
      }
      auto matches = matches_of(source.path);
      if (!matches) return matches.error();
      paths = std::move(*matches);
    }
    for (const std::string& path : paths) {
      if (auto added = all.add_path(source, path); !added) return added.error();
    }
  }
  return all.take();
}

Result<std::string> read_prompt(const Document& document) {
  std::error_code code;
  const std::string prefix = document.prefix ? *document.prefix : std::string{};
  const std::uint64_t bytes = fs::file_size(document.path, code);
  if (code) return io_error(document.path, code);
  if (bytes + prefix.size() > kTextBytesMax) {
    return make_error(Errc::invalid, document.path + ": more than " +
                                         std::to_string(kTextBytesMax >> 20U) +
                                         " MiB with its prefix: split it");
  }
  auto text = engine::read_file(document.path);
  if (!text) return text;
  if (text->empty()) return make_error(Errc::invalid, document.path + ": is empty");
  if (const std::size_t good = engine::valid_utf8_prefix(*text); good != text->size()) {
    return make_error(Errc::invalid,
                      document.path + ": is not UTF-8 text (byte " + std::to_string(good) + ")");
  }
  // Who asks about the document leaves the mark out, as every reader of text does.
  const std::size_t mark = text->starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  if (mark == text->size()) return make_error(Errc::invalid, document.path + ": is empty");
  return prefix + text->substr(mark);
}

Result<std::shared_ptr<const std::string>> read_prefix(const std::filesystem::path& file) {
  auto text = read_prompt({file.string(), nullptr, {}, 0, true});
  if (!text) return text.error();
  return std::make_shared<const std::string>(std::move(*text));
}

}  // namespace kvtier::warm
