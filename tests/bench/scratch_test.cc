// The directory that a benchmark works in.
#include <gtest/gtest.h>

#include "bench/support/records.h"

namespace kvtier::bench {
namespace {

TEST(ScratchDirectory, has_an_absolute_path_below_a_relative_one_and_goes_with_its_owner) {
  std::filesystem::path path;
  {
    const ScratchDirectory scratch(".");
    path = scratch.path();
    EXPECT_TRUE(path.is_absolute()) << path;
    EXPECT_TRUE(std::filesystem::is_directory(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ScratchDirectory, says_where_it_cannot_be_made) {
  try {
    const ScratchDirectory scratch("/nowhere");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kvtier::bench
