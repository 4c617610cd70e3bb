// What the benchmarks' main functions have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "bench/support/report.h"

namespace kvtier::bench {

// The kvtierd beside this program.
std::string kvtierd_beside();

// A benchmark from its arguments to its exit status: adds --json to `app` (where it has
// subcommands, to each of them), parses, measures and prints what was reported. 0: measured; 1:
// `measure` threw a std::exception, whose text goes to stderr; 2: usage.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void(Report&)>& measure);

}  // namespace kvtier::bench
