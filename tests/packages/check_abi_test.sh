#!/usr/bin/env bash
# scripts/check-abi.sh passes what is there, and reports a function that a program of the last release would miss.
# check_abi_test.sh BUILD_DIR; 77 where abidiff is missing.
set -euo pipefail
build=$(realpath "$1")
top=$(realpath "$(dirname "$0")/../..")
command -v abidiff >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
recorded=$top/client/abi/libkvtier.abi

fail() {
  echo "check_abi_test: $1" >&2
  cat "$work/said" >&2
  exit 1
}
reports() {
  local what=$1
  if KVTIER_ABI_OLD=$work/planted.abi "$top/scripts/check-abi.sh" "$build" >"$work/said" 2>&1; then
    fail "it did not report $what"
  fi
  grep -q "would break" "$work/said" || fail "it said something else of $what"
}

"$top/scripts/check-abi.sh" "$build" >"$work/said" 2>&1 || fail "the library is not what client/abi/ has"

# A function that the last release had and this library has not.
sed "s/<elf-symbol name='kvt_version'[^>]*>/&\n    <elf-symbol name='kvt_gone' type='func-type' binding='global-binding' visibility='default-visibility' is-defined='yes'\/>/" \
  "$recorded" >"$work/planted.abi"
grep -q kvt_gone "$work/planted.abi" || fail "nothing was planted"
reports "a function that is gone"
grep -q kvt_gone "$work/said" || fail "it did not name the function"
