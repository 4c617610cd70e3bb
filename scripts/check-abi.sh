#!/usr/bin/env bash
# Compares what libkvtier.so exports with the last release. It finds functions that have left or have other
# parameters; of types only some changes (client/c/struct_layouts.cc has the others).
#
#   scripts/check-abi.sh BUILD_DIR            ends with 1 where a program of the last release would break
#   scripts/check-abi.sh BUILD_DIR --record   writes client/abi/libkvtier.abi; with a release's tag, and with no other change
#
# What is added is told and is no breach. A change on purpose needs a new SOVERSION, and then a record of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?which build directory}
library=$build/client/libkvtier.so
recorded=client/abi/libkvtier.abi
suppressions=client/abi/suppressions.ini

for tool in abidw abidiff; do
  command -v $tool >/dev/null || { echo "check-abi: $tool is missing: scripts/bootstrap.sh" >&2; exit 2; }
done
headers=(--headers-dir client/include/kvtier --headers-dir core/include/kvtier)

if [[ ${2:-} == --record ]]; then
  # Without addresses, so that the record changes with the interface alone.
  abidw "${headers[@]}" --drop-private-types --drop-undefined-syms --no-corpus-path --no-comp-dir-path --no-show-locs \
    --type-id-style hash --out-file "$recorded" "$library"
  echo "check-abi: $recorded has what $library exports"
  exit 0
fi

status=0
abidiff --hd2 client/include/kvtier --hd2 core/include/kvtier --drop-private-types --no-added-syms \
  --suppressions "$suppressions" "${KVTIER_ABI_OLD:-$recorded}" "$library" || status=$?
# Bits of abidiff's status: 1 and 2 it failed, 4 a type changed, 8 something is gone.
if (( status & 3 )); then
  echo "check-abi: abidiff could not compare (status $status)" >&2
  exit 2
elif (( status )); then
  echo "check-abi: programs of the last release would break; mend it, or raise SOVERSION" >&2
  exit 1
fi
echo "check-abi: programs of the last release go on"
