#!/usr/bin/env python3
"""The parts of scripts/check.sh, which says what they are and installs what they need."""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "check"
PAGE = ROOT / "docs" / "internals" / "checks.md"
CORES = os.cpu_count()
JOBS = CORES  # tests at a time: --jobs
FUZZ_SECONDS = 60
TITLES = {
    "asan": "every test under ASan and UBSan", "tsan": "every test under TSan", "fuzz": "libFuzzer",
    "coverage": "lines that the tests run", "systemd": "the packages in a systemd", "tidy": "clang-tidy over every source",
}


class NotHeld(Exception):
    """What did not hold, in words."""


class CannotRun(Exception):
    """Why a part cannot be run on this machine."""


def run(log, *command, ok=True, **more):
    """Runs a command with its output in build/check/LOG.log; a status other than 0 is not what was hoped for."""
    path = OUT / f"{log}.log"
    with path.open("a") as file:
        file.write(f"$ {' '.join(map(str, command))}\n")
        file.flush()
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, **more).returncode
    if ok and status:
        raise NotHeld(f"{' '.join(map(str, command[:4]))} ended with {status}: {path.relative_to(ROOT)}")
    return status


def build(preset, log):
    run(log, "cmake", "--preset", preset)
    run(log, "cmake", "--build", "--preset", preset, "-j", str(CORES))


def run_tests(preset, log):
    """How many tests passed of how many, and the names of those that failed."""
    report = OUT / f"{log}.xml"
    report.unlink(missing_ok=True)
    run(log, "ctest", "--preset", preset, "-LE", "slow", "--parallel", str(JOBS), "--output-junit", report, ok=False)
    if not report.exists():
        raise NotHeld(f"ctest reported nothing: build/check/{log}.log")
    cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
    statuses = {case.get("name"): case.get("status") for case in cases}
    failed = [name for name, status in statuses.items() if status not in ("run", "notrun", "disabled")]
    passed = sum(status == "run" for status in statuses.values())
    skipped = len(statuses) - passed - len(failed)
    if not passed:
        raise NotHeld(f"no test was run: build/check/{log}.log")
    return {"tests": len(statuses), "passed": passed, "skipped": skipped, "failed": failed}


def in_words(figures):
    words = f"{figures['passed']} of {figures['tests']} passed"
    words += f", {figures['skipped']} skipped" if figures["skipped"] else ""
    return words + (f"; failed: {', '.join(figures['failed'][:8])}" if figures["failed"] else "")


def suite(preset, log):
    build(preset, log)
    for old in (ROOT / "build" / preset).rglob("*.gcda"):
        old.unlink()
    figures = run_tests(preset, log)
    if figures["failed"]:
        raise NotHeld(in_words(figures))
    yield "tests", in_words(figures), figures


def asan():
    yield from suite("asan-ubsan", "asan")


def tsan():
    yield from suite("tsan", "tsan")


def fuzz():
    build("fuzz", "fuzz")
    targets = sorted((ROOT / "build" / "fuzz" / "bin").glob("fuzz_*"))
    targets = [target for target in targets if target.name != "fuzz_tests"]
    if not targets:
        raise NotHeld("no target was built")
    broken = []
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:  # a target runs on one core
        for target, (status, figures) in zip(targets, pool.map(fuzz_target, targets)):
            if status or not figures["runs"]:
                broken.append(f"{target.name} ended with {status}: build/check/{target.name}.log")
            yield target.name, f"{figures['runs']} inputs, {figures['edges']} edges", figures
    if broken:
        raise NotHeld("; ".join(broken))


def fuzz_target(target):
    """One target for a minute: its exit status, and how many inputs it ran and edges it reached."""
    corpus = OUT / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    status = run(target.name, target, f"-max_total_time={FUZZ_SECONDS}", "-print_final_stats=1", "-rss_limit_mb=4096",
                 f"-artifact_prefix={OUT}/{target.name}-", corpus, ok=False,
                 env={**os.environ, "KVTIER_FUZZ_SEEDS": str(corpus)})
    said = (OUT / f"{target.name}.log").read_text(errors="replace")
    runs = re.findall(r"stat::number_of_executed_units: (\d+)", said)
    edges = re.findall(r"cov: (\d+)", said)
    return status, {"runs": int(runs[-1]) if runs else 0, "edges": int(edges[-1]) if edges else 0}


def folder_of(name):
    """Two levels of a source's path, or one where there are no more: what a row of the coverage is about."""
    return "/".join(name.split("/")[:-1][:2])


def coverage():
    # A build of its own: under ASan too, what counts for many threads at once makes tests wait past their deadlines.
    folder = ROOT / "build" / "coverage"
    list(suite("coverage", "coverage"))
    report = OUT / "coverage.json"
    run("coverage", "gcovr", "--root", ROOT, "--object-directory", folder, "--exclude-unreachable-branches",
        "--filter", f"{ROOT}/(client|core|ctl|daemon|engine_adapter|kernels|storage)/", "--json-summary", report,
        "--html", OUT / "coverage.html", "-j", str(CORES), folder)
    folders = {}
    for file in json.loads(report.read_text())["files"]:
        counts = folders.setdefault(folder_of(file["filename"]), [0, 0])
        counts[0] += file["line_covered"]
        counts[1] += file["line_total"]
    covered, total = map(sum, zip(*folders.values()))
    for name, (lines, of) in [("all", (covered, total)), *sorted(folders.items())]:
        yield name, f"{lines} of {of} lines, {lines / max(of, 1):.1%}", {"lines": lines, "of": of}


def systemd():
    if os.geteuid() != 0:
        raise CannotRun("needs root")
    # What the scenario looks at is the same in packages with CUDA, which take three times as long.
    run("systemd", "scripts/package.sh", "-DKVTIER_CUDA=OFF", "-DCMAKE_UNITY_BUILD=ON")
    status = run("systemd", "tests/systemd/run.sh", "build/package", ok=False)
    said = (OUT / "systemd.log").read_text(errors="replace")
    held = len(re.findall(r"^held: ", said, re.M))
    broken = re.findall(r"^NOT HELD: (.*)", said, re.M)
    if status == 77:
        raise CannotRun("".join(re.findall(r"^SKIPPED: (.*)", said, re.M)[-1:]))
    if status or not held:
        raise NotHeld(f"ended with {status}; {'; '.join(broken) or 'build/check/systemd.log'}")
    yield "checks", f"{held} held", {"held": held}


def tidy():
    run("tidy", "cmake", "--preset", "test")
    run("tidy", "cmake", "--build", "--preset", "test", "-j", str(CORES), "--target", "kvtier_wire")
    status = run("tidy", "python3", "scripts/tidy.py", "--all", "--together", ok=False)
    said = re.findall(r"^tidy: (\d+) findings in (\d+) of (\d+) sources", (OUT / "tidy.log").read_text(), re.M)
    if not said:
        raise NotHeld(f"ended with {status}: build/check/tidy.log")
    findings, looked_at, sources = map(int, said[-1])
    if status:
        raise NotHeld(f"{findings} findings in {looked_at} of {sources} compilations: build/check/tidy.log")
    yield "sources", f"{looked_at} of {sources} compilations, nothing found", {"looked_at": looked_at, "of": sources}


PARTS = {part.__name__: part for part in (asan, coverage, tsan, fuzz, systemd, tidy)}


def result_of(part):
    """One part's outcome: what it is called, whether it held, what was seen, and how long it took."""
    for old in OUT.glob(f"{part}*.log"):
        old.unlink()
    begun, seen, outcome, why = time.monotonic(), [], "held", ""
    try:
        for name, words, figures in PARTS[part]():
            seen.append({"name": name, "seen": words, **figures})
            print(f"check: {part}: {name}: {words}", flush=True)
    except NotHeld as error:
        outcome, why = "NOT HELD", str(error)
    except CannotRun as error:
        outcome, why = "not run", str(error)
    commit = commit_of_tree()
    return {"part": part, "outcome": outcome, "why": why, "seconds": round(time.monotonic() - begun), "seen": seen,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%F"), "commit": commit,
            "machine": machine()}


def commit_of_tree():
    """Its short name, with -dirty where the tree is another in more than what is recorded here."""
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True).stdout.strip()
    recorded = PAGE.relative_to(ROOT).with_suffix(".*")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){recorded}")
    return git("describe", "--always") + ("-dirty" if changed else "")


def machine():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    models = re.findall(r"^model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return f"{models[0] if models else platform.machine()}, {CORES} cores, {memory:.0f} GiB"


def rows(result):
    """Lines of the table: name, outcome, what was seen."""
    rest = [(f"{result['part']}: {seen['name']}", "", seen["seen"]) for seen in result["seen"]]
    if len(rest) == 1:
        return [(result["part"], result["outcome"], result["why"] or rest[0][2])]
    return [(result["part"], result["outcome"], result["why"] or TITLES[result["part"]]), *rest]


def print_table(results):
    lines = [(*row, f"{result['seconds']} s" if i == 0 else "")
             for result in results for i, row in enumerate(rows(result))]
    width = max(len(line[0]) for line in lines)
    print()
    for name, outcome, words, seconds in lines:
        print(f"{name:<{width}}  {outcome:<8}  {seconds:>7}  {words}")


def record(results):
    """Writes the page anew from what it was last written from and from these results."""
    data = PAGE.with_suffix(".json")
    kept = {result["part"]: result for result in json.loads(data.read_text())} if data.exists() else {}
    kept |= {result["part"]: result for result in results}
    ordered = [kept[part] for part in PARTS if part in kept]
    data.write_text(json.dumps(ordered, indent=1) + "\n")
    lines = ["# What the long checks said last", "",
             "Written by `scripts/check.sh --record`, which says what each part is; run one with `scripts/check.sh PART`.", "",
             "| part | outcome | seen | time | date | commit | machine |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for result in ordered:
        for i, (name, outcome, words) in enumerate(rows(result)):
            of_run = (f"{result['seconds']} s", result["date"], result["commit"], result["machine"]) if i == 0 else ("",) * 4
            lines.append("| " + " | ".join((name, outcome, words.replace("|", "\\|"), *of_run)) + " |")
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"check: {PAGE.relative_to(ROOT)} written")


def main():
    global JOBS
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/check.sh")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--jobs", type=int, default=CORES, metavar="N")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    if not shutil.which("cmake"):
        parser.error("scripts/check.sh installs what is needed and runs this")
    JOBS = arguments.jobs
    OUT.mkdir(parents=True, exist_ok=True)
    results = []
    for part in [part for part in PARTS if part in arguments.parts or not arguments.parts]:
        print(f"check: {part}: {TITLES[part]} (build/check/{part}.log)", flush=True)
        results.append(result_of(part))
        (OUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)
    if arguments.record:
        record(results)
    outcomes = {result["outcome"] for result in results}
    if outcomes == {"held"}:
        print("check: everything held")
    return 1 if "NOT HELD" in outcomes else 77 if "not run" in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
