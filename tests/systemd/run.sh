#!/usr/bin/env bash
# The Debian packages in a real systemd: builds them twice, the second time as a later version, and has scenario.py
# install, use, restart, kill, upgrade, reload, remove and purge them. run.sh BUILD_DIR
#
# KVTIER_CACHED_MIB: how much is cached when the daemon is restarted (8192, or an eighth of that where memory is short).
set -euo pipefail
build=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
[[ $(id -u) -eq 0 ]] || { echo "SKIPPED: needs root" >&2; exit 77; }

work=$(mktemp -d "$build/systemd-test-XXXXXX")
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")/\1/p' "$build/CPackConfig.cmake")
for number in 1 2; do
  (cd "$build" && cpack -D CPACK_PACKAGE_VERSION="$version+test$number" \
    -D CPACK_OUTPUT_FILE_PREFIX="$work/packages$number" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip \
    -B "$work/cpack$number") > "$work/cpack.log" 2>&1 ||
    { cat "$work/cpack.log" >&2; exit 1; }
done
available_mib=$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
cached=${KVTIER_CACHED_MIB:-8192}
if ((available_mib < cached + 4096)); then
  cached=$((cached / 8))
  echo "NOTE: $available_mib MiB of memory are available; only $cached MiB are cached"
fi
cp "$here/scenario.py" "$here/../packages/CMakeLists.txt" "$here/../packages/example.cc" "$work"
"$here/boot.sh" "$work" /usr/bin/python3 /mnt/work/scenario.py --cached-mib "$cached"
