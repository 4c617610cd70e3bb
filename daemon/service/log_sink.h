// Where kvtierd's log goes: a descriptor, usually stderr. Whoever logs never waits for whoever
// reads it: what a full pipe, socket or terminal does not take is kept up to a bound, and past that
// lines are left out and counted. Any thread.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "core/base/fd.h"

namespace kvtier::daemon {

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr std::size_t kBytesKeptMax = 256U << 10;

  // `fd` stays the caller's and open.
  explicit LogSink(int fd);

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  // Tries again with what is kept; it is done with each line too.
  void flush_() override;

 private:
  enum class Kind { file, socket, other };
  std::size_t write_some(std::string_view text) const noexcept;

  int fd_;
  Kind kind_ = Kind::file;
  UniqueFd own_;  // the same pipe or terminal, opened so that it does not wait
  std::string kept_;
  std::uint64_t left_out_ = 0;
};

}  // namespace kvtier::daemon
