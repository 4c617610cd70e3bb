#include "storage/remote/redis/reply_reader.h"

#include <charconv>
#include <initializer_list>

#include "core/base/check.h"

namespace kvtier::storage {
namespace {

// hiredis's own functions, but for an array that nothing the store asks for is answered with.
redisReplyObjectFunctions& bounded_functions() {
  static redisReplyObjectFunctions functions = [] {
    redisReader* const plain = ::redisReaderCreate();
    KVTIER_CHECK(plain != nullptr);
    static const redisReplyObjectFunctions own = *plain->fn;
    ::redisReaderFree(plain);
    redisReplyObjectFunctions bounded = own;
    bounded.createArray = [](const redisReadTask* task, int elements) -> void* {
      const bool fits =
          elements >= 0 && static_cast<std::size_t>(elements) <= ReplyReader::kElementsMax;
      return fits ? own.createArray(task, elements) : nullptr;
    };
    return bounded;
  }();
  return functions;
}

Error not_redis(const std::string& why) {
  return make_error(Errc::malformed, "it does not answer as a Redis does (" + why + ")");
}

void append_number(std::string& out, char type, std::size_t number) {
  char digits[24];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
  out += type;
  out.append(std::begin(digits), end);
  out += "\r\n";
}

}  // namespace

ReplyReader::ReplyReader() : reader_(::redisReaderCreateWithFunctions(&bounded_functions())) {
  KVTIER_CHECK(reader_ != nullptr);
}

Result<Reply> ReplyReader::take(std::string_view line) {
  bytes_ += line.size();
  if (bytes_ > kReplyBytesMax) return not_redis("a reply is too long");
  void* object = nullptr;
  if (::redisReaderFeed(reader_.get(), line.data(), line.size()) != REDIS_OK ||
      ::redisReaderGetReply(reader_.get(), &object) != REDIS_OK) {
    return not_redis(reader_->errstr);
  }
  Reply reply(static_cast<redisReply*>(object));
  if (reply) bytes_ = 0;
  return reply;
}

Result<long long> bulk_length(std::string_view line) {
  long long length = 0;
  if (line.size() > 3 && line.ends_with("\r\n") && line[0] == '$') {
    const char* const last = line.data() + line.size() - 2;
    const auto [end, failed] = std::from_chars(line.data() + 1, last, length);
    if (failed == std::errc{} && end == last && length >= -1) return length;
  }
  return not_redis("a value has no length");
}

void append_array(std::string& out, std::size_t arguments) {
  append_number(out, '*', arguments);
}
void append_bulk_head(std::string& out, std::size_t bytes) {
  append_number(out, '$', bytes);
}
void append_bulk(std::string& out, std::string_view argument) {
  append_bulk_head(out, argument.size());
  out += argument;
  out += "\r\n";
}
void append_command(std::string& out, std::initializer_list<std::string_view> arguments) {
  append_array(out, arguments.size());
  for (const std::string_view argument : arguments) append_bulk(out, argument);
}

}  // namespace kvtier::storage
