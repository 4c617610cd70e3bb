#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests: the ones every change must pass, in under 25 minutes
# on two cores. The long campaigns are labelled `slow`: ctest --preset test -L slow.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh
cmake --preset test
cmake --build --preset test
ctest --preset test -LE slow --parallel 2
