#!/usr/bin/env bash
# What takes longer than a change may: installs what is missing, builds in folders of its own under build/, runs each part
# to its end and ends with a table, which build/check/results.json has too. All of it takes some hours on two cores.
#
#   scripts/check.sh [--record] [--jobs N] [PART ...]      without a part: all of them
#
#   asan      every test under AddressSanitizer and UndefinedBehaviorSanitizer
#   coverage  how many of the lines of each folder the tests run, in a build that counts them
#   tsan      every test under ThreadSanitizer
#   fuzz      each libFuzzer target for a minute, one on each core
#   systemd   the packages, installed, used, upgraded and removed in a real systemd; as root
#   tidy      clang-tidy over every source
#
#   --record  writes the table to docs/internals/checks.md, with date, machine and commit; of a part that was not run,
#             what was written before stays
#   --jobs N  tests at a time; without it as many as there are cores
#
# Exit status: 0 everything held; 1 something did not; 2 usage; 77 nothing failed, but not everything could be run here.
set -euo pipefail
cd "$(dirname "$0")/.."
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
scripts/bootstrap.sh clang clang-tidy-14 gcovr libclang-rt-14-dev llvm chromium dbus lintian systemd
exec python3 scripts/checks.py "$@"
