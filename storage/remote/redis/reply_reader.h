// Replies of the Redis protocol, RESP2, all but the bodies of values, which are received straight
// to where they belong. hiredis parses; here is what bounds it.
#pragma once

#include <hiredis/hiredis.h>

#include <memory>
#include <string>
#include <string_view>

#include "kvtier/result.h"

namespace kvtier::storage {

struct FreeReply {
  void operator()(redisReply* reply) const noexcept { ::freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

class ReplyReader {
 public:
  static constexpr std::size_t kReplyBytesMax = 4U << 20, kElementsMax = 1U << 17;

  ReplyReader();
  // Takes one more line with its line feed, or a piece of a longer one; no reply goes on behind the
  // end of a line, so nothing of the next one is taken. Null: the reply goes on. Errors: malformed.
  Result<Reply> take(std::string_view line);
  bool between_replies() const noexcept { return bytes_ == 0; }

 private:
  struct FreeReader {
    void operator()(redisReader* reader) const noexcept { ::redisReaderFree(reader); }
  };
  std::unique_ptr<redisReader, FreeReader> reader_;
  std::size_t bytes_ = 0;  // of the reply that is being read
};

// The length that a bulk string's first line gives, which is -1 for none. Errors: malformed.
Result<long long> bulk_length(std::string_view line);

// A command's array head, then each argument: appended to `out`.
void append_array(std::string& out, std::size_t arguments);
void append_bulk_head(std::string& out, std::size_t bytes);
void append_bulk(std::string& out, std::string_view argument);
void append_command(std::string& out, std::initializer_list<std::string_view> arguments);

}  // namespace kvtier::storage
