#!/usr/bin/env bash
# Fails where clang-format 14 would change a source that is, or could be, committed. With --fix it changes them.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(--dry-run -Werror)
[[ ${1:-} == --fix ]] && mode=(-i)
format=$(command -v clang-format-14) || { echo "check-format: clang-format-14 is missing: apt-get install clang-format-14" >&2; exit 2; }
git ls-files -z --cached --others --exclude-standard -- '*.c' '*.cc' '*.h' '*.cu' '*.cuh' '*.inc' |
  { while IFS= read -r -d '' file; do [[ -e $file ]] && printf '%s\0' "$file"; done; true; } |
  xargs -0 -P "$(nproc)" -n 50 "$format" "${mode[@]}"
