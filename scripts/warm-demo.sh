#!/usr/bin/env bash
# kvtier-warm on a real tree of documents: CMake's reference manual, which the package cmake-data brings. It is
# interrupted with SIGINT and with SIGKILL, goes on, and then every document is asked about. Installs what is
# missing, builds, runs, and ends with a table and build/warm-demo.json. Exit code 0 only if everything it
# promises held.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh
cmake --preset release -DKVTIER_TESTS=OFF
cmake --build --preset release
exec python3 scripts/warm_demo.py --build build/release --out build/warm-demo.json "$@"
