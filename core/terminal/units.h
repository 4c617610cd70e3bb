// Numbers as people read and write them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "kvtier/result.h"

namespace kvtier::ctl {

std::string human_bytes(std::uint64_t bytes);  // "1.50 GiB"
std::string human_duration(std::uint64_t ms);  // "3d 04:05:06"
std::string percent(std::uint64_t part, std::uint64_t whole);
std::string human_rate(double per_second);  // "0", "12.3", "45.6 k"

// "90s", "15m", "2h", "7d", at least a second. Errors: invalid.
Result<std::chrono::seconds> parse_duration(const std::string& text);

}  // namespace kvtier::ctl
