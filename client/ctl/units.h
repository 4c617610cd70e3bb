// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace kvtier::ctl {

std::string human_bytes(std::uint64_t bytes);  // "1.50 GiB"
std::string human_duration(std::uint64_t ms);  // "3d 04:05:06"
std::string percent(std::uint64_t part, std::uint64_t whole);

}  // namespace kvtier::ctl
