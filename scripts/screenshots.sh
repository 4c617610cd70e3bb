#!/usr/bin/env bash
# Makes the screenshots of docs/images/ from a real run: a daemon, engines that ask it questions for some
# minutes, and Chromium. Needs a build (default build/release) and Debian's chromium.
#   scripts/screenshots.sh [BUILD] [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:-build/release}")
PYTHONDONTWRITEBYTECODE=1 python3 scripts/screenshots.py --build "$build" --out docs/images --seconds "${2:-150}"
