#!/usr/bin/env bash
# Installs every Debian package that building, testing and the demo need, by name, and those that are given. Runs as
# root, or through sudo from another account. With nothing missing it changes nothing and needs no rights.
set -euo pipefail

packages=(
  abigail-tools build-essential cmake go-md2man iproute2 ninja-build pkg-config git ca-certificates python3 python3-dev python3-venv
  capnproto cppzmq-dev libcapnp-dev libboost1.81-dev libcli11-dev libgtest-dev libhiredis-dev liburing-dev libpcre2-dev
  librocksdb-dev libsentencepiece-dev libspdlog-dev libssl-dev libsystemd-dev libtomlplusplus-dev libutf8proc-dev
  libxxhash-dev libzmq3-dev nlohmann-json3-dev prometheus-cpp-dev python3-msgpack python3-numpy python3-zmq redis-server
)

missing=()
for package in "${packages[@]}" "$@"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "bootstrap: everything is installed"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "bootstrap: these packages are missing and this account is not root and has no sudo:" >&2
    echo "  ${missing[*]}" >&2
    echo "Ask an administrator to run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  if ! sudo -n true 2>/dev/null && [[ ! -t 0 ]]; then
    echo "bootstrap: sudo asks for a password and there is no terminal to give it on. Run first:" >&2
    echo "  sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "bootstrap: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
