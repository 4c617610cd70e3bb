#!/usr/bin/env bash
# What `cmake --install` puts under a prefix is enough for another project: it is built through CMake and through
# pkg-config, and runs against a daemon. consumer.sh BUILD_DIR
set -euo pipefail
build=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
daemon=
trap '[[ -z $daemon ]] || kill "$daemon"; rm -rf "$work"' EXIT

for component in libkvtier0 libkvtier-dev; do
  cmake --install "$build" --prefix "$work/usr" --component $component >/dev/null
done
exported=$(nm -DC --defined-only "$work"/usr/lib/*/libkvtier.so.0 | grep -v ' A ')
if grep -vE 'kvtier::| T kvt_' <<<"$exported" || grep -E 'kvtier::(session|wire|daemon|cuda)::' <<<"$exported"; then
  echo "consumer: the library exports what is not its own" >&2
  exit 1
fi

# What an engine calls and the library does not export: most likely a function that client/libkvtier.map lacks.
public='kvtier::(Client|Cache|Load|Lease|WriteBack|LayerStore|PagePool|Prefix)::'
missing=$(comm -23 \
  <(nm -C --defined-only "$build/client/libkvtier.a" | grep -E " T $public" | grep -v State | cut -d' ' -f3- | sort -u) \
  <(sed -n 's/@@KVTIER_0//p' <<<"$exported" | cut -d' ' -f3- | sort -u))
if [[ -n $missing ]]; then
  printf 'consumer: not exported, see client/libkvtier.map:\n%s\n' "$missing" >&2
  exit 1
fi

# A library that was built with a sanitizer wants its program to have the sanitizer's runtime.
flags=()
sanitizers=$(sed -n 's/^KVTIER_SANITIZE:STRING=//p' "$build/CMakeCache.txt")
[[ -z $sanitizers ]] || flags=("-fsanitize=$sanitizers")

cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/usr" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_FLAGS="${flags[*]}" >/dev/null
cmake --build "$work/cmake" >/dev/null
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$work"/usr/lib/*/pkgconfig/libkvtier.pc)
# shellcheck disable=SC2046
${CXX:-c++} -std=c++20 "${flags[@]}" "$here/example.cc" -o "$work/by-pkg-config" $(pkg-config --cflags --libs libkvtier)
# shellcheck disable=SC2046
${CC:-cc} -std=c11 "${flags[@]}" "$work"/usr/share/doc/libkvtier-dev/examples/store_and_load.c -o "$work/in-c" \
  $(pkg-config --cflags --libs libkvtier)

cat > "$work/kvtierd.toml" <<END
socket = "$work/socket"
[host]
capacity = "64MiB"
extent_size = "32MiB"
END
"$build/bin/kvtierd" --config "$work/kvtierd.toml" 2>"$work/log" &
daemon=$!
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(dirname "$work"/usr/lib/*/libkvtier.so.0)
"$work/in-c" "$work/socket"
"$work/cmake/kvtier-example" "$work/socket" fill 2
for program in "$work/cmake/kvtier-example" "$work/by-pkg-config"; do
  "$program" "$work/socket" hit 1 | tee "$work/answer"
  grep -q '"blocks": 16, "device": 0, "host": 16, "disk": 0' "$work/answer"
done
