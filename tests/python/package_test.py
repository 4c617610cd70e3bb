"""The wheel: what is in it, what it needs of the system, and whether its types are what they say."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import kvtier
import pages

FOLDER = pathlib.Path(kvtier.__file__).parent
HERE = pathlib.Path(__file__).resolve().parent
SOURCE = pathlib.Path(__file__).resolve().parents[2]
CONFIGURED = ("--config-file", str(SOURCE / "pyproject.toml"))  # what the engines' adapters import need not be there
# Of every Linux that has a C++20 compiler's runtime.
OF_THE_SYSTEM = re.compile(r"(linux-vdso|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-[\w-]+)\.so(\.\d+)?")


def run(*command, **more):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    return ended.returncode, ended.stdout


class PackageTest(unittest.TestCase):
    def test_it_stands_alone(self):
        self.assertEqual(FOLDER.parent.name, "site-packages", "what is installed is looked at, not the sources")
        module = next(FOLDER.glob("_kvtier*.so"))
        code, said = run("ldd", str(module))
        self.assertEqual(code, 0)
        needed = [(line.split()[0], line.partition("=> ")[2].split(" (")[0]) for line in said.splitlines()]
        self.assertGreater(len(needed), 3)
        for name, found in needed:
            if not OF_THE_SYSTEM.fullmatch(pathlib.Path(name).name):
                self.assertEqual(pathlib.Path(found).resolve().parent, FOLDER.resolve(), f"{name} is not in the wheel")

    def test_it_exports_nothing_but_its_start(self):
        code, said = run("nm", "-D", "--defined-only", str(next(FOLDER.glob("_kvtier*.so"))))
        self.assertEqual(code, 0)
        self.assertEqual([line.split()[-1] for line in said.splitlines()], ["PyInit__kvtier"])

    def test_the_licences_of_what_is_inside_go_along(self):
        found = {path.name for path in (FOLDER / "licenses").iterdir()}
        self.assertEqual(found, {"libcapnp-dev.txt", "libxxhash-dev.txt", "nanobind.txt"})

    def test_its_version_is_the_projects(self):
        project = re.search(r"project\(kvtier VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        self.assertEqual(kvtier.__version__, project)
        code, said = run(sys.executable, "-c", "import importlib.metadata as m; print(m.version('kvtier'))")
        self.assertEqual((code, said.strip()), (0, project))

    def test_it_needs_no_array_library(self):
        code, said = run(sys.executable, "-c", "import kvtier, sys; print([m for m in ('numpy', 'torch') if m in sys.modules])")
        self.assertEqual((code, said.strip()), (0, "[]"))

    def test_its_types_are_strict(self):
        with tempfile.TemporaryDirectory() as cache:
            for what in (["-p", "kvtier"], [str(HERE / "typed_program.py")]):
                code, said = run(sys.executable, "-m", "mypy", *CONFIGURED, "--strict", "--cache-dir", cache, *what, cwd=cache)
                self.assertEqual(code, 0, said)

    def test_its_stubs_are_the_modules(self):
        with tempfile.TemporaryDirectory() as cache:
            code, said = run(sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", str(SOURCE / "pyproject.toml"),
                             "--allowlist", str(HERE / "stubtest-allowlist.txt"), "kvtier", cwd=cache)
            self.assertEqual(code, 0, said)
            code, said = run(sys.executable, "-m", "nanobind.stubgen", "-m", "kvtier._kvtier", "-o", "made.pyi", cwd=cache)
            self.assertEqual(code, 0, said)
            made = (pathlib.Path(cache) / "made.pyi").read_text()
        self.assertEqual((FOLDER / "_kvtier.pyi").read_text(), made, "make it anew: python -m nanobind.stubgen -m kvtier._kvtier")


if __name__ == "__main__":
    pages.main()
