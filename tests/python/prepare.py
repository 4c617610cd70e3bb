#!/usr/bin/env python3
"""Builds the wheel as `pip install .` does, and a fresh virtual environment with it.

    prepare.py --source . --work DIR --build-type Debug --cxx-flags "-O1" --cuda OFF

Exits with 77, skipped, where no virtual environment can be made or pip cannot reach what the build needs. What failed
otherwise fails. The wheel is in DIR/wheel, the environment in DIR/venv, and DIR/ready says that both are there; DIR/build stays, so that a second run is quick.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import venv

SKIPPED = 77
# The build's own (pyproject.toml), so that pip needs no network of its own while it builds, and what the tests use.
TOOLS = ["scikit-build-core>=0.10", "nanobind>=3.1,<4", "cmake>=3.25", "ninja"]
USED = ["numpy", "mypy"]


def run(*command):
    print("+", *command, flush=True)
    return subprocess.run(command).returncode == 0


def needs(what, *command):
    """What comes from outside: without it the tests are skipped."""
    if not run(*command):
        print(f"skipped: {what}")
        sys.exit(SKIPPED)


def made(folder):
    """The Python of a new virtual environment."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: no virtual environment can be made (python3-venv): {error}")
        sys.exit(SKIPPED)
    return folder / "bin" / "python"


def main():
    parser = argparse.ArgumentParser()
    for name in ("source", "work", "build-type", "cxx-flags", "cuda"):
        parser.add_argument("--" + name, required=True)
    given = parser.parse_args()
    work = pathlib.Path(given.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    wheels = work / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    (work / "ready").unlink(missing_ok=True)

    tools = work / "tools" / "bin" / "python"
    if not tools.exists():
        made(work / "tools")
    needs("pip cannot install what builds the wheel", tools, "-m", "pip", "install", "-q", *TOOLS)
    settings = [f"build-dir={work / 'build'}", f"cmake.build-type={given.build_type}", f"cmake.define.KVTIER_CUDA={given.cuda}",
                f"cmake.define.CMAKE_CXX_FLAGS_{given.build_type.upper()}={given.cxx_flags}", "install.strip=false"]
    if not run(tools, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", wheels,
               *[f"-C{setting}" for setting in settings], given.source):
        sys.exit("prepare: the wheel could not be built")
    python = made(work / "venv")
    needs("pip cannot install what the tests use", python, "-m", "pip", "install", "-q", *USED, "nanobind>=3.1,<4")
    if not run(python, "-m", "pip", "install", "-q", "--no-deps", *wheels.glob("kvtier-*.whl")):
        sys.exit("prepare: the wheel could not be installed")
    # Only now: tests take it for complete.
    (work / "ready").touch()


if __name__ == "__main__":
    main()
