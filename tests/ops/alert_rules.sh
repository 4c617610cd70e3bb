#!/usr/bin/env bash
# Checks the alert rules in the folder $1 and runs their tests, with a promtool that may be fetched into $2. Exit code 77
# (skipped) where there is none.
set -euo pipefail
promtool=$("$(dirname "$0")/promtool.sh" "$2")
cd "$1"
"$promtool" check rules kvtier-alerts.yml
"$promtool" test rules kvtier-alerts-test.yml
