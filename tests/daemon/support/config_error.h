#pragma once

#include <gtest/gtest.h>

#include <string>

#include "daemon/config/config.h"

namespace kvtier::daemon {

// The message of what must be an error of the configuration.
inline std::string error_of(const std::string& text) {
  const auto config = parse_config(text, "k.toml");
  if (config) return "accepted";
  EXPECT_EQ(config.error().code, Errc::invalid);
  return config.error().message;
}

}  // namespace kvtier::daemon
