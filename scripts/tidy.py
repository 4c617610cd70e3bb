#!/usr/bin/env python3
"""Runs clang-tidy 14 over the sources, as .clang-tidy says.

  scripts/tidy.py              what a change touched, and a share of the rest, without the analyzer and the tests
  scripts/tidy.py --all        everything; with --together, those sources at once that the build compiles at once
  scripts/tidy.py FILE ...     these

The share goes round: with every commit it is another one, and after as many commits as there are shares all files had
their turn. A changed header is looked at in one source that includes it. A source that the build does not compile
(CUDA's) is not looked at. The build folder must have been configured and its generated headers made.
Exit status: 0 nothing found; 1 something was; 2 it could not be run.
"""
import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARES = 20
TOGETHER = re.compile(r'^#include "(.*)"$', re.M)
FINDING = re.compile(r"^(\S+?):(\d+):(\d+): (?:error|warning): .*\[[\w.,-]+\]$")


def fail(why):
    print(f"tidy: {why}", file=sys.stderr)
    sys.exit(2)


def git(*arguments):
    """The lines that it prints, or None where it fails."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def compiled_sources(build):
    """The sources of ours that the build compiles, each with one of its commands. One that is compiled together with
    others has theirs, with its own name in place of the file that includes them."""
    database = build / "compile_commands.json"
    if not database.exists():
        fail(f"{database} is missing: cmake --preset test && cmake --build --preset test")
    commands = {}
    for entry in json.loads(database.read_text()):
        path = pathlib.Path(entry["file"])
        together = TOGETHER.findall(path.read_text()) if path.is_relative_to(build) and "Unity" in path.parts else None
        for source in map(pathlib.Path, together or [path]):
            if source.is_relative_to(ROOT) and not source.is_relative_to(build):
                own = {**entry, "file": str(source), "command": entry["command"].replace(str(path), str(source))}
                commands.setdefault(str(source.relative_to(ROOT)), own)
    return dict(sorted(commands.items()))


def compiled_at_once(build):
    """What the compiler is called for: sources of ours, and the files that include several of them."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.is_relative_to(ROOT) and ("Unity" in path.parts or not path.is_relative_to(build)):
            commands[str(path.relative_to(ROOT))] = entry
    return dict(sorted(commands.items()))


def one_command_each(build, commands):
    """A folder with a database in which a source that is compiled for several programs is once."""
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(list(commands.values())))
    return folder


def base_of_change():
    """The commit that a change began at: where it left the main line, or on that the commit before."""
    for main in ("origin/main", "origin/HEAD"):
        if base := git("merge-base", "HEAD", main):
            if base != git("rev-parse", "HEAD"):
                return base[0]
    return (git("rev-parse", "--verify", "-q", "HEAD~1") or [None])[0]


def touched(base, sources):
    """Of the sources, those that were changed since `base`, and one for each header that was."""
    changed = set(git("diff", "--name-only", base, "--") or [])
    changed |= set(git("ls-files", "--others", "--exclude-standard") or [])
    chosen = changed & set(sources)
    for header in sorted(changed):
        if not header.endswith((".h", ".inc")):
            continue
        includes = f'#include "{header}"'
        public = f'#include "{header.partition("/include/")[2]}"'
        users = [source for source in sources
                 if (text := (ROOT / source).read_text()) and (includes in text or public in text)]
        own = header.rpartition(".")[0] + ".cc"
        if users and not chosen & set(users):
            chosen.add(own if own in users else min(users))
    return sorted(chosen)


def share(sources):
    count = git("rev-list", "--count", "HEAD")
    turn = int(count[0]) % SHARES if count else 0
    return list(sources)[turn::SHARES]


class Tidy:
    def __init__(self, program, folder, options, budget_s):
        self.command = [program, "-p", folder, "--quiet"]
        self.options = options  # of a source: checks and arguments
        self.ends = time.monotonic() + budget_s if budget_s else None
        self.findings, self.broken, self.looked_at = {}, {}, []

    def look_at(self, source):
        if self.ends and time.monotonic() > self.ends:
            return
        done = subprocess.run([*self.command, *self.options(source), ROOT / source], capture_output=True, text=True)
        self.looked_at.append(source)
        found = [line for line in done.stdout.splitlines() if FINDING.match(line)]
        for line in found:
            # A header's is found in every source that includes it.
            if line not in self.findings:
                self.findings[line] = source
                print(line.replace(f"{ROOT}/", ""), flush=True)
        if done.returncode and not found:
            self.broken[source] = done.stdout + done.stderr
            print(f"{source}:1: clang-tidy ended with {done.returncode}:\n{done.stdout}{done.stderr}", flush=True)


def arguments_given():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every source")
    parser.add_argument("--together", action="store_true", help="a third of the time; says nothing of a source alone")
    parser.add_argument("--analyzer", action="store_true", help="with clang-analyzer-*, which takes three times as long")
    parser.add_argument("--base", help="the commit that the change began at")
    parser.add_argument("--budget-s", type=float, help="begin with no further source after so many seconds")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "test", help="(default: build/test)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time (default: all cores)")
    parser.add_argument("--list", action="store_true", help="say what would be looked at, and end")
    parser.add_argument("files", nargs="*", metavar="FILE")
    return parser.parse_args()


def chosen_sources(arguments, sources):
    if arguments.files:
        return [str(pathlib.Path(file).resolve().relative_to(ROOT)) for file in arguments.files]
    if arguments.all:
        return list(sources)
    base = arguments.base or base_of_change()
    if base is None:
        print("tidy: no earlier commit is here: only the share is looked at", file=sys.stderr)
    shipped = [source for source in sources if not source.startswith("tests/")]
    first = touched(base, shipped) if base else []
    return first + [source for source in share(shipped) if source not in first]


def options_of(arguments, build, source):
    """Of a source: what is not looked for in it beyond what .clang-tidy says."""
    without = [] if arguments.analyzer else ["-clang-analyzer-*"]
    options = []
    if arguments.together:
        without.append("-bugprone-suspicious-include")
        options.append("--extra-arg=-Wno-shadow")  # by a name in another source
        # A file that includes tests lies in the build's folder, where the tests' .clang-tidy is not found.
        own = ROOT / "tests" / ".clang-tidy"
        if (ROOT / source).is_relative_to(build / "tests") and own.exists():
            without += re.findall(r"-[a-z][\w*-]+", own.read_text().partition("Checks:")[2])
    return options + ([f"--checks={','.join(without)}"] if without else [])


def main():
    arguments = arguments_given()
    build = arguments.build.resolve()
    sources = compiled_sources(build)
    if arguments.together:
        sources = compiled_at_once(build)
    chosen = chosen_sources(arguments, sources)
    if unknown := [source for source in chosen if source not in sources]:
        fail(f"the build does not compile {' '.join(unknown)}")
    if arguments.list:
        print(*chosen, sep="\n")
        return 0
    program = shutil.which("clang-tidy-14") or fail("clang-tidy-14 was not found: apt-get install clang-tidy-14")
    options = functools.partial(options_of, arguments, build)
    tidy = Tidy(program, one_command_each(build, sources), options, arguments.budget_s)
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in [pool.submit(tidy.look_at, source) for source in chosen]:
            done.result()
    left = len(chosen) - len(tidy.looked_at)
    print(f"tidy: {len(tidy.findings) + len(tidy.broken)} findings in {len(tidy.looked_at)} of {len(sources)} sources, "
          f"{time.monotonic() - begun:.0f} s" + (f"; no time was left for {left} that were chosen" if left else ""),
          file=sys.stderr)
    return 1 if tidy.findings or tidy.broken else 0


if __name__ == "__main__":
    sys.exit(main())
