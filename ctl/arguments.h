// The command line of kvtierctl.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ctl/commands.h"

namespace kvtier::ctl {

struct Arguments {
  Target target;
  bool json = false;
  // The commands' own, checked while parsing.
  Selection what;
  TierSet tiers;
  bool all = false, force = false, wait = false, report = false, verify = false, once = false;
  std::uint64_t blocks = 0;
  SortBy sort = SortBy::none;
  std::chrono::seconds lifetime{0};
  double interval_s = 2;
  std::string tenant;
  std::vector<QuotaChange> quotas;
  std::string config = "/etc/kvtier/kvtierd.toml";
  // As they were written.
  struct Text {
    long timeout_ms = 0;
    std::string ns, model, revision, not_revision, key, with, lifetime, sort;
    std::vector<std::string> tiers;
    std::array<std::string, kTiers> quotas;
  } text;
};

// The parser; `command` is the one that was asked for once it has parsed.
class CommandLine {
 public:
  explicit CommandLine(Arguments& arguments);
  // None: go on; otherwise the exit status (usage, or help was printed).
  std::optional<int> parse(int argc, char** argv);
  const std::string& command() const noexcept { return command_; }

 private:
  CLI::App& add(const std::string& name, const std::string& what, const std::string& examples);
  void add_looking();
  void add_keeping();
  void add_removing();
  void add_checking();
  void add_filter(CLI::App& command);
  void add_key(CLI::App& command, const std::string& with, bool required = false);
  void add_tiers(CLI::App& command, const std::string& what, bool remote_too = true);
  void finish();

  Arguments& arguments_;
  CLI::App app_;
  std::string command_;
};

}  // namespace kvtier::ctl
