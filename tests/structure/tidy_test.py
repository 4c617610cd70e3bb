#!/usr/bin/env python3
"""scripts/tidy.py looks at what a change touched, comes round to everything, and sees a planted mistake."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE_DIR = pathlib.Path(__file__).resolve().parent.parent.parent
SHARES = 20
MISTAKE = "#include <string>\nint length(std::string text) { return static_cast<int>(text.size()); }\n"
TOGETHER = "build/test/core/CMakeFiles/core.dir/Unity/unity_0_cxx.cxx"


class TidyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name).resolve()
        self.git("init", "-q")
        self.git("config", "user.email", "test@example.org")
        self.git("config", "user.name", "test")
        (self.tree / "scripts").mkdir()
        for name in ("scripts/tidy.py", ".clang-tidy"):
            shutil.copy(SOURCE_DIR / name, self.tree / name)
        self.plant(".gitignore", "/build/\n")
        self.plant("core/include/kvtier/record.h", "#pragma once\n")
        self.plant("core/base/fd.h", "#pragma once\n")
        self.sources = [f"core/base/part{number:02}.cc" for number in range(2 * SHARES)]
        for source in self.sources:
            self.plant(source, "")
        self.plant("core/base/fd.cc", '#include "core/base/fd.h"\n')
        self.plant("core/record/record.cc", '#include "kvtier/record.h"\n#include "core/base/fd.h"\n')
        self.sources += ["core/base/fd.cc", "core/record/record.cc"]
        self.plant("tests/core/part_test.cc", "")
        self.plant(TOGETHER, "".join(f'#include "{self.tree / source}"\n\n' for source in self.sources[4:9]))
        alone = self.sources[:4] + self.sources[9:]
        database = [{"directory": str(self.tree), "file": str(self.tree / source),
                     "command": f"c++ -I{self.tree} -I{self.tree}/core/include -isystem {self.tree}/build/system "
                                f"-std=c++20 -Wno-restrict -c {self.tree / source}"}
                    for source in [TOGETHER, *alone, "tests/core/part_test.cc"] for _ in range(2)]
        self.plant("build/test/compile_commands.json", json.dumps(database))
        self.commit()

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.tree, *arguments], check=True, capture_output=True)

    def plant(self, name, text):
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text(text)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a change")

    def tidy(self, *arguments):
        return subprocess.run([sys.executable, self.tree / "scripts" / "tidy.py", *arguments], capture_output=True, text=True)

    def chosen(self, *arguments):
        return self.tidy("--list", *arguments).stdout.split()

    def test_what_the_last_commit_touched_comes_first(self):
        self.plant("core/base/part07.cc", "int a;\n")
        self.plant("core/base/part03.cc", "int b;\n")
        self.commit()
        self.assertEqual(self.chosen()[:2], ["core/base/part03.cc", "core/base/part07.cc"])

    def test_what_is_not_committed_yet_is_touched_too(self):
        self.plant("core/base/part07.cc", "int a;\n")
        self.assertEqual(self.chosen("--base", "HEAD")[0], "core/base/part07.cc")

    def test_a_header_is_looked_at_in_one_that_includes_it(self):
        self.plant("core/base/fd.h", "#pragma once\nint a();\n")
        self.plant("core/include/kvtier/record.h", "#pragma once\nint b();\n")
        self.commit()
        self.assertEqual(self.chosen()[:2], ["core/base/fd.cc", "core/record/record.cc"])

    def test_every_source_has_its_turn(self):
        seen = set()
        for _ in range(SHARES):
            share = self.chosen()
            self.assertLessEqual(len(share), 3)
            seen |= set(share)
            self.commit()
        self.assertEqual(seen, set(self.sources))
        self.assertEqual(set(self.chosen("--all")) - seen, {"tests/core/part_test.cc"})

    def test_without_an_earlier_commit_there_is_a_share(self):
        clone = self.tree / "build" / "clone"
        self.git("clone", "-q", "--depth", "1", f"file://{self.tree}", str(clone))
        for name in ("build/test/compile_commands.json", TOGETHER):
            self.plant(f"build/clone/{name}", (self.tree / name).read_text().replace(str(self.tree), str(clone)))
        done = subprocess.run([sys.executable, clone / "scripts" / "tidy.py", "--list"], capture_output=True, text=True)
        self.assertIn("no earlier commit", done.stderr)
        self.assertLessEqual(1, len(done.stdout.split()))

    def test_those_that_are_compiled_together_are_looked_at_at_once_where_that_is_asked_for(self):
        self.assertEqual(len(self.chosen("--all", "--together")), len(self.sources) + 1 - 5 + 1)

    def test_a_source_that_is_not_built_is_an_error_and_not_a_pass(self):
        self.plant("core/base/new.cc", MISTAKE)
        self.assertEqual(self.tidy(str(self.tree / "core/base/new.cc")).returncode, 2)
        (self.tree / "build/test/compile_commands.json").unlink()
        self.assertEqual(self.tidy().returncode, 2)

    @unittest.skipUnless(shutil.which("clang-tidy-14"), "clang-tidy-14 is not installed")
    def test_a_mistake_is_found(self):
        for name, *arguments in (("core/base/part01.cc", "core/base/part01.cc"), ("core/base/part05.cc", "core/base/part05.cc"),
                                 ("core/base/part06.cc", "--together", TOGETHER)):
            with self.subTest(arguments):
                *options, looked_at = arguments
                self.assertEqual(self.tidy(*options, self.tree / looked_at).returncode, 0)
                self.plant(name, MISTAKE)
                done = self.tidy(*options, self.tree / looked_at)
                self.assertRegex(done.stdout, rf"(?m)^{name}:2:\d+: error: .*performance-unnecessary-value-param")
                self.assertEqual(done.returncode, 1)
                self.plant(name, "")

    @unittest.skipUnless(shutil.which("clang-tidy-14"), "clang-tidy-14 is not installed")
    def test_a_mistake_in_a_header_is_found_and_one_in_the_systems_is_not(self):
        mistake = MISTAKE.replace("int length", "inline int length")
        self.plant("build/system/core/other.h", mistake.replace("length", "length_of_other"))
        self.plant("core/base/fd.h", "#include <core/other.h>\n" + mistake)
        done = self.tidy(str(self.tree / "core/base/fd.cc"), str(self.tree / "core/record/record.cc"))
        self.assertEqual(done.stdout.count("error:"), 1, done.stdout)
        self.assertIn("core/base/fd.h:3:", done.stdout)

    @unittest.skipUnless(shutil.which("clang-tidy-14"), "clang-tidy-14 is not installed")
    def test_a_source_that_does_not_compile_does_not_pass(self):
        self.plant("core/base/part01.cc", '#include "core/base/missing.h"\n')
        self.assertEqual(self.tidy(str(self.tree / "core/base/part01.cc")).returncode, 1)

    @unittest.skipUnless(shutil.which("clang-tidy-14"), "clang-tidy-14 is not installed")
    def test_time_that_runs_out_is_told(self):
        done = self.tidy("--all", "--budget-s", "0.001")
        self.assertRegex(done.stderr, r"no time was left for \d+")


if __name__ == "__main__":
    unittest.main()
