// Changes bytes of a file that a daemon is using, as a failing drive would: past the page cache.
// Pages that a buffered write leaves dirty come in the way of the daemon's own O_DIRECT writes to
// the file, which the kernel then fails, there or at the next fsync.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>

#include "core/base/fd.h"

namespace kvtier::daemon::testing {

// `bytes` lie within one of the file's 4 KiB blocks at `offset`. Does nothing past the file's end.
inline void damage(const std::filesystem::path& path, std::uint64_t offset,
                   std::span<const char> bytes) {
  constexpr std::uint64_t kBlock = 4096;
  const std::uint64_t within = offset % kBlock;
  ASSERT_LE(within + bytes.size(), kBlock);
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  ASSERT_TRUE(file) << path << ": " << std::strerror(errno);
  const std::unique_ptr<char, decltype(&std::free)> block(
      static_cast<char*>(std::aligned_alloc(kBlock, kBlock)), &std::free);
  const auto at = static_cast<off_t>(offset - within);
  const ssize_t got = ::pread(file.get(), block.get(), kBlock, at);
  if (got == 0) return;  // the file is still being made
  ASSERT_EQ(got, static_cast<ssize_t>(kBlock)) << path;
  std::memcpy(block.get() + within, bytes.data(), bytes.size());
  ASSERT_EQ(::pwrite(file.get(), block.get(), kBlock, at), static_cast<ssize_t>(kBlock)) << path;
}

}  // namespace kvtier::daemon::testing
