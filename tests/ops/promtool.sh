#!/usr/bin/env bash
# Prints where promtool is: the installed one, or the one of Debian's package prometheus, which is fetched into the
# folder $1 and not installed. Exit code 77 and the reason where there is none to be had.
set -euo pipefail

if command -v promtool; then exit 0; fi
mkdir -p "$1"
cd "$1"
exec 9>lock
flock 9
if [[ -x usr/bin/promtool ]]; then
  echo "$PWD/usr/bin/promtool"
  exit 0
fi

absent() {
  echo "skipped: promtool is not installed, and Debian's package prometheus $*" | tee absent >&2
  exit 77
}
# Tests that run after one another ask a network that is not there only once.
if [[ -n $(find . -maxdepth 1 -name absent -mmin -15) ]]; then
  cat absent >&2
  exit 77
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || absent "is of no use here: this is no Debian"
apt=(timeout 120 apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=1 -o Acquire::http::Timeout=10)
rm -f prometheus_*.deb
if ! "${apt[@]}" download prometheus >log 2>&1; then
  # Without lists of packages, as in a fresh container, root can get them.
  [[ $(id -u) -eq 0 ]] && "${apt[@]}" update >>log 2>&1 && "${apt[@]}" download prometheus >>log 2>&1 ||
    absent "cannot be fetched: $(tail -1 log)"
fi
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --wildcards './usr/bin/promtool'
rm -f prometheus_*.deb absent
usr/bin/promtool --version >log 2>&1 || absent "does not run here: $(tail -1 log)"
echo "$PWD/usr/bin/promtool"
