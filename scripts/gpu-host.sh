#!/usr/bin/env bash
# Builds, packs, and on a GPU host runs what kvtier has for GPUs: tests, compute-sanitizer, benchmarks.
# Prints one table at the end and writes the same rows as JSON.
#
#   scripts/gpu-host.sh                 on a machine with nvcc and a GPU: builds, packs and runs
#   scripts/gpu-host.sh pack            builds and packs: build/gpu-host/ and build/gpu-host.tar.xz
#   FOLDER/gpu-host.sh run              in the unpacked folder on the GPU host, where nothing is built
#
# Options (of all three; what does not apply is ignored):
#   --build DIR     pack the programs of this build; nothing is built
#   --cuda-architectures LIST
#                   build for these alone, as CMAKE_CUDA_ARCHITECTURES (90a-real: Hopper, a much smaller package)
#   --out FOLDER    where to pack (default: build/gpu-host)
#   --results DIR   where the JSON goes, as <card>-<date>.json (default: results/ in the packed folder)
#   --disk DIR      also measure the disk that DIR is on (needs 28 GiB there); the engine is measured with it
#   --tests-only    no benchmarks
#
# The GPU host needs the NVIDIA driver, libcublasLt.so.13 (CUDA 13, or PyTorch's packages), python3 and a glibc
# at least as new as the build machine's; compute-sanitizer runs where it is found. The
# benchmarks take up to 52 GiB of its memory.
# Exit status: 0 all passed; 1 a test, a check or a benchmark failed; 2 usage, or something is missing.
set -euo pipefail

programs=(gpu_kernels_tests gpu_transfer_tests gpu_attention_tests kvtier-gpu-bench kvtier-bench kvtierd kvtierctl)
# Packed where the build has them.
more_programs=(gpu_client_tests gpu_engine_process gpu_engine_tests gpu_e2e_tests gpu_e2e_victim kvtier-engine
  kvtier-gpu-engine-bench kvtier-client-bench kvtier-load-bench kvtier-serve-bench)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command=all
build= out= results= disk= tests_only= architectures=

usage() { sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
fail() { echo "gpu-host: $1" >&2; exit "${2:-2}"; }
say() { echo "gpu-host: $1" >&2; }

parse_arguments() {
  case ${1:-} in pack | run | all) command=$1; shift ;; esac
  while [[ $# -gt 0 ]]; do
    case $1 in
      --build | --out | --results | --disk)
        [[ $# -ge 2 ]] || fail "$1 needs a value"
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
      --cuda-architectures)
        [[ $# -ge 2 ]] || fail "$1 needs a value"
        architectures=$2
        shift 2
        ;;
      --tests-only) tests_only=1; shift ;;
      -h | --help) usage; exit 0 ;;
      *) usage >&2; fail "unknown argument: $1" ;;
    esac
  done
}

# --- On the build machine ---------------------------------------------------------------------------

# Sets `build` to a folder that holds the programs.
build_programs() {
  cd "$here/.."
  if [[ -z $build ]]; then
    cmake --preset cuda ${architectures:+-DCMAKE_CUDA_ARCHITECTURES="$architectures"}
    cmake --build --preset cuda
    build=build/cuda
  fi
  local program
  for program in "${programs[@]}"; do
    [[ -x $build/bin/$program ]] || fail "$build has no bin/$program: build it, or leave --build out"
  done
  for program in "${more_programs[@]}"; do
    if [[ -x $build/bin/$program ]]; then programs+=("$program"); fi
  done
}

# The shared libraries that a GPU host may lack: all but the C and C++ runtime and NVIDIA's.
libraries_of() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|libcuda|libcublas|libcublasLt)\.so'
}

pack() {
  build_programs
  out=${out:-build/gpu-host}
  rm -rf "$out" "$out.tar.xz"
  mkdir -p "$out/bin"
  local program
  for program in "${programs[@]}"; do
    install -m 755 "$build/bin/$program" "$out/bin/"
    strip "$out/bin/$program"
  done
  libraries_of "${programs[@]/#/$build/bin/}" | xargs -r install -m 644 -t "$out/bin"
  # What the tests read, as they find it from the source directory.
  mkdir -p "$out/source/engine_adapter" "$out/source/tests/data"
  cp -r engine_adapter/models "$out/source/engine_adapter/"
  cp -r tests/data/checkpoints tests/data/golden "$out/source/tests/data/"
  install -m 755 scripts/pytorch_prefill.py "$out/"
  mkdir "$out/formats"
  cp bench/formats/*.py "$out/formats/"
  install -m 755 "${BASH_SOURCE[0]}" "$out/gpu-host.sh"
  # The programs have much in common, which a dictionary larger than each of them finds.
  tar -C "$(dirname "$out")" -cf - "$(basename "$out")" | xz --lzma2=preset=6,dict=256MiB >"$out.tar.xz"
  local mib=$(($(stat -c %s "$out.tar.xz") / 1048576))
  say "packed $out.tar.xz, $mib MiB: unpack it on the GPU host and start gpu-host.sh run there"
}

# --- On the GPU host --------------------------------------------------------------------------------

# Folders where libcublasLt.so.13 may be when the loader does not know it.
cublas_folders() {
  ldconfig -p 2>/dev/null | awk '/libcublasLt\.so\.13/ {print $NF}' | xargs -r -n 1 dirname
  printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/cuda-13*/lib64
  python3 - <<'PYTHON' 2>/dev/null || true
import glob, site, sysconfig
for root in {*site.getsitepackages(), sysconfig.get_path("purelib")}:
    print(*glob.glob(root + "/nvidia/*/lib"), sep="\n")
PYTHON
}

set_library_path() {
  export LD_LIBRARY_PATH=$here/bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  local folder
  while read -r folder; do
    if [[ -e $folder/libcublasLt.so.13 ]]; then
      export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$folder
      return
    fi
  done < <(cublas_folders)
  fail "libcublasLt.so.13 was not found: install CUDA 13's cuBLAS, or add its folder to LD_LIBRARY_PATH"
}

find_sanitizer() {
  { command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer \
    /opt/nvidia/*/compute-sanitizer /opt/nvidia/*/*/compute-sanitizer; } 2>/dev/null | head -1 || true
}

# Sets `part` to a new file of rows.
new_part() {
  parts=$((parts + 1))
  printf -v part '%s/parts/%03d.json' "$results" "$parts"
}

# row NAME VALUE UNIT [LIMIT]: one row of the table.
row() {
  local part
  new_part
  printf '[{"name": "%s", "value": %s, "unit": "%s", "limit": %s}]\n' "$1" "$2" "$3" "${4:-null}" >"$part"
}

run_tests() {
  local program log passed total
  for program in "$here"/bin/gpu_*_tests; do
    say "tests: $(basename "$program")"
    log=$results/$(basename "$program").log
    "$program" --gtest_brief=1 >"$log" 2>&1 || failed=1
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
    total=$("$program" --gtest_list_tests | grep -c '^  ')
    # A test that is skipped here has not passed.
    if [[ ${passed:-0} -ne $total ]]; then
      failed=1
      grep -E '^\[  (FAILED|SKIPPED)' "$log" | sort -u | head -20 >&2 || true
    fi
    row "tests.$(basename "$program")" "${passed:-0}" passed "$total"
  done
}

# The larger tests meet the same code as the smaller ones and would take minutes here.
sanitizer_filter='-*Large*:*EveryHalf*:*EngineOver*:GpuGemm.*:*Slow*'
racecheck_filter='GpuElementwise.G*:GpuStoreKv.N*:GpuStoredPages.G*:GpuSample.GreedyAnd*:GpuSample.*Nan*:*RunsInAGraph*'

run_sanitizer() {
  local sanitizer program tool filter log errors
  sanitizer=$(find_sanitizer)
  if [[ -z $sanitizer ]]; then
    say "compute-sanitizer was not found: not run"
    return
  fi
  for tool in memcheck racecheck; do
    filter=$sanitizer_filter
    if [[ $tool == racecheck ]]; then filter=$racecheck_filter; fi
    for program in "$here"/bin/gpu_{kernels,transfer,attention}_tests; do
      if ! "$program" --gtest_list_tests --gtest_filter="$filter" | grep -q '^  '; then continue; fi
      say "compute-sanitizer $tool: $(basename "$program")"
      log=$results/$tool-$(basename "$program").log
      "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" --gtest_brief=1 \
        --gtest_filter="$filter" >"$log" 2>&1 || failed=1
      errors=$(sed -nE 's/.*(ERROR SUMMARY|RACECHECK SUMMARY): ([0-9]+).*/\2/p' "$log" | tail -1)
      row "compute-sanitizer.$tool.$(basename "$program")" "${errors:--1}" errors
    done
  done
}

# The engine beside PyTorch, where that is found.
bench_engine() {
  local program=$here/bin/kvtier-gpu-engine-bench part
  [[ -x $program ]] || return 0
  local options=(--dir "${disk:-$results}")
  new_part
  say "benchmark: PyTorch"
  if python3 "$here/pytorch_prefill.py" --out "$part" >"$results/pytorch.log" 2>&1; then
    options+=(--baseline "$part")
  else
    say "PyTorch was not found or failed: nothing to hold the engine against"
    rm -f "$part"
  fi
  bench engine "$program" "${options[@]}"
}

# What a serving engine is asked, with the cache and without.
bench_serve() {
  local program=$here/bin/kvtier-serve-bench
  [[ -x $program ]] || return 0
  # The documents need 26 GiB of the tiers, and the pool holds a third of them.
  local options=(--random-weights llama-3.1-8b --device cuda --dir "$results" --device-capacity 16GiB
    --host-extent 1GiB)
  bench serve_documents timeout -k 5 600 "$program" "${options[@]}" --workload document_qa \
    --pool-tokens 131072 --running-max 4 --host-capacity 32GiB --trial-seconds 15 --search-seconds 90 \
    --deadline-seconds 580
  # A pool that cannot keep every conversation.
  bench serve_chats timeout -k 5 300 "$program" "${options[@]}" --workload shared_prompt --workload chat \
    --sessions 48 --pool-tokens 32768 --running-max 12 --host-capacity 16GiB --deadline-seconds 280
}

# bench NAME COMMAND...: its JSON rows become rows of the table.
bench() {
  local name=$1 part
  shift
  say "benchmark: $name"
  new_part
  if ! "$@" --json >"$part" 2>"$results/$name.log"; then
    cat "$results/$name.log" >&2
    rm -f "$part"
    failed=1
  fi
}

# Joins the rows in parts/ into the file $1 and prints them as one table.
print_table() {
  python3 - "$1" "$results"/parts/*.json <<'PYTHON'
import json, sys
rows = []
for path in sys.argv[2:]:
    for row in json.load(open(path)):
        limit = row.get("limit")
        rows.append({**row, "limit": limit, "ratio": row["value"] / limit if limit else None})
with open(sys.argv[1], "w") as file:
    file.write("[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n")
width = max(len(row["name"]) for row in rows)
print(f"{'name':{width}} {'value':>14}  {'unit':8} {'limit':>14} {'ratio':>7}")
for row in rows:
    held = f" {row['limit']:14.3f} {row['ratio']:7.3f}" if row["limit"] else ""
    print(f"{row['name']:{width}} {row['value']:14.3f}  {row['unit']:8}{held}")
PYTHON
}

run() {
  command -v nvidia-smi >/dev/null || fail "nvidia-smi was not found: this part needs a machine with a GPU"
  command -v python3 >/dev/null || fail "python3 was not found"
  local card file
  card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
  results=${results:-$here/results}
  failed= parts=0
  rm -rf "$results/parts"
  mkdir -p "$results/parts"
  set_library_path
  export KVTIER_SOURCE_DIR=$here/source KVTIER_TEST_SCRATCH=$results
  export KVTIER_TEST_KVTIERD=$here/bin/kvtierd KVTIER_TEST_VICTIM=$here/bin/gpu_e2e_victim
  export KVTIER_TEST_ENGINE=$here/bin/gpu_engine_process
  export KVTIER_TEST_ENGINE_PROGRAM=$here/bin/kvtier-engine
  nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current \
    --format=csv,noheader >&2 || true
  run_tests
  if [[ -z $tests_only ]]; then
    bench gpu "$here/bin/kvtier-gpu-bench"
    bench_engine
    if [[ -x $here/bin/kvtier-client-bench ]]; then
      bench client "$here/bin/kvtier-client-bench" --kvtierd "$here/bin/kvtierd" --dir "${disk:-$results}"
      bench layouts "$here/bin/kvtier-client-bench" --kvtierd "$here/bin/kvtierd" --dir "$results" --layouts
    fi
    bench_serve
    if [[ -n $disk ]]; then bench disk "$here/bin/kvtier-bench" disk --dir "$disk"; fi
  fi
  run_sanitizer
  file=$results/$(tr 'A-Z ' 'a-z-' <<<"${card#NVIDIA }")-$(date -u +%F).json
  print_table "$file"
  say "rows: $file"
  [[ -z $failed ]] || fail "something failed: the logs are in $results" 1
}

parse_arguments "$@"
case $command in
  pack) pack ;;
  run) run ;;
  all)
    results=${results:+$(realpath -m "$results")}
    disk=${disk:+$(realpath "$disk")}
    pack
    exec "$out/gpu-host.sh" run ${results:+--results "$results"} ${disk:+--disk "$disk"} \
      ${tests_only:+--tests-only}
    ;;
esac
