#!/usr/bin/env bash
# Builds the Debian packages from a Release build, in build/package/packages, and has lintian look at them where it
# is installed.
#
#   scripts/package.sh [CMAKE_OPTION ...]      such as -DKVTIER_CUDA=OFF
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh
cmake --preset release -B build/package -DKVTIER_TESTS=OFF "$@"
cmake --build build/package
(cd build/package && cpack)
if command -v lintian >/dev/null; then
  lintian --fail-on error build/package/packages/*.deb
else
  echo "package: lintian is not installed; the packages were not checked" >&2
fi
