#!/usr/bin/env bash
# The main job on real input: a model answers questions about a document whose KV is computed once and then
# comes from the cache, across engines and daemons. Installs what is missing, builds, runs, and ends with a
# table and build/demo.json. Exit code 0 only if everything it promises held.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh
cmake --preset release -DKVTIER_TESTS=OFF
cmake --build --preset release
exec python3 scripts/demo.py --build build/release --out build/demo.json "$@"
