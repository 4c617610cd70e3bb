#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests: the ones every change must pass, in under 25 minutes
# on two cores. The long campaigns are labelled `slow`: ctest --preset dev -L slow.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh
cmake --preset dev
cmake --build --preset dev
ctest --preset dev -LE slow --parallel 2
