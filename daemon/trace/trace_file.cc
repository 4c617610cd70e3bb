#include "daemon/trace/trace_file.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace kvtier::daemon {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLineBytesMax = 16U << 20;
constexpr std::uint64_t kBlocksMax = 1U << 29;

class Reader {
 public:
  Reader(std::string name, std::uint32_t block_tokens) : name_(std::move(name)) {
    trace_.block_tokens = block_tokens;
  }

  Result<void> line(const std::string& text) {
    ++line_;
    if (text.find_first_not_of(" \t\r") == std::string::npos) return {};
    if (text.size() > kLineBytesMax) return wrong("a line of more than 16 MiB: split the trace");
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object())
      return wrong("no JSON object: write one request a line, as {\"timestamp\": 0, ...}");
    TracedRequest request;
    std::uint64_t input = 0, output = 0;
    if (auto good = number(json, "timestamp", request.at_ms, kTimeMax); !good) return good;
    if (auto good = number(json, "input_length", input, kTokensMax); !good) return good;
    if (auto good = number(json, "output_length", output, kTokensMax); !good) return good;
    if (auto good = ids(json, request.blocks); !good) return good;
    if (!trace_.requests.empty() && request.at_ms < trace_.requests.back().at_ms)
      return wrong("'timestamp' is less than in the request before: sort the lines by it");
    if ((trace_.blocks += request.blocks.size()) > kBlocksMax)
      return wrong("more than 536870912 blocks: shorten the trace");
    request.input_tokens = static_cast<std::uint32_t>(input);
    request.output_tokens = static_cast<std::uint32_t>(output);
    trace_.prompt_tokens += input;
    if (auto good = tell_block_tokens(request); !good) return good;
    trace_.requests.push_back(std::move(request));
    return {};
  }

  Result<Trace> end() {
    if (trace_.requests.empty())
      return make_error(Errc::invalid, name_ + ": no request: write one a line");
    if (trace_.block_tokens == 0) trace_.block_tokens = std::bit_ceil(std::max(least_, 1U));
    trace_.different_blocks = seen_.size();
    return std::move(trace_);
  }

 private:
  static constexpr std::uint64_t kTimeMax = 1ULL << 53;
  static constexpr std::uint64_t kTokensMax = 1ULL << 30;

  Result<void> wrong(const std::string& what) const {
    return make_error(Errc::invalid, name_ + ":" + std::to_string(line_) + ": " + what);
  }

  Result<void> number(const Json& json, const char* key, std::uint64_t& to,
                      std::uint64_t most) const {
    const auto found = json.find(key);
    const std::string quoted = "'" + std::string(key) + "'";
    if (found == json.end()) return wrong("no " + quoted + ": add it, as a whole number");
    if (!found->is_number() || found->get<double>() < 0 ||
        found->get<double>() > static_cast<double>(most))
      return wrong(quoted + " is no number from 0 to " + std::to_string(most) + ": correct it");
    to = static_cast<std::uint64_t>(found->get<double>());
    return {};
  }

  Result<void> ids(const Json& json, std::vector<std::uint64_t>& to) {
    const auto found = json.find("hash_ids");
    if (found == json.end() || !found->is_array() || found->empty())
      return wrong("no 'hash_ids': add the numbers of the prompt's blocks, at least one");
    to.reserve(found->size());
    for (const Json& id : *found) {
      if (!id.is_number_unsigned())
        return wrong("'hash_ids' has what is no whole number from 0 up: correct it");
      to.push_back(id.get<std::uint64_t>());
      seen_.insert(to.back());
    }
    return {};
  }

  // Of n blocks all but the last are full: a prompt has more tokens than n - 1 of them, and at most
  // n. What is not given is the least power of two that no prompt speaks against.
  Result<void> tell_block_tokens(const TracedRequest& request) {
    const std::uint64_t n = request.blocks.size();
    const auto least = static_cast<std::uint32_t>((request.input_tokens + n - 1) / n);
    least_ = std::max(least_, least);
    if (trace_.block_tokens == 0 || least <= trace_.block_tokens) return {};
    return wrong("'input_length' is more than " + std::to_string(n) + " blocks of " +
                 std::to_string(trace_.block_tokens) +
                 " tokens: correct it, or give the size of the trace's blocks");
  }

  std::string name_;
  std::uint64_t line_ = 0;
  std::uint32_t least_ = 0;  // tokens that a block must have
  std::unordered_set<std::uint64_t> seen_;
  Trace trace_;
};

}  // namespace

Result<Trace> read_trace(std::istream& lines, const std::string& name, std::uint32_t block_tokens) {
  Reader reader(name, block_tokens);
  for (std::string line; std::getline(lines, line);) {
    if (auto good = reader.line(line); !good) return good.error();
  }
  if (lines.bad()) return make_error(Errc::io, name + ": cannot be read to its end");
  return reader.end();
}

Result<Trace> read_trace(const std::filesystem::path& file, std::uint32_t block_tokens) {
  std::ifstream lines(file);
  if (!lines || std::filesystem::is_directory(file))
    return make_error(Errc::io, file.string() + ": cannot be read: give a file of JSON lines");
  return read_trace(lines, file.string(), block_tokens);
}

}  // namespace kvtier::daemon
