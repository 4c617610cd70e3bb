#!/usr/bin/env bash
# Checks the alert rules and runs their tests. Exit code 77 (skipped) where promtool is not installed.
set -euo pipefail
cd "$1"
if ! command -v promtool >/dev/null; then
  echo "skipped: promtool is not installed (Debian package prometheus)"
  exit 77
fi
promtool check rules kvtier-alerts.yml
promtool test rules kvtier-alerts-test.yml
