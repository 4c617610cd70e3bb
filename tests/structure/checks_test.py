#!/usr/bin/env python3
"""scripts/checks.py with stand-ins for the tools: what fails is told, in the table, the JSON, the page and the status."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE_DIR = pathlib.Path(__file__).resolve().parent.parent.parent

CTEST = """#!/usr/bin/env python3
import pathlib, sys
report = pathlib.Path(sys.argv[sys.argv.index("--output-junit") + 1])
cases = "".join(f'<testcase name="{n}" status="{s}"/>' for n, s in STATUSES)
report.write_text(f"<testsuite>{cases}</testsuite>")
print("told:", *sys.argv)
sys.exit(8)
"""
FUZZER = """#!/bin/sh
echo "#123 DONE   cov: 45 ft: 6"
echo "stat::number_of_executed_units: 123"
exit STATUS
"""


class ChecksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name).resolve()
        for name in ("scripts", "docs/internals", "tools"):
            (self.tree / name).mkdir(parents=True)
        shutil.copy(SOURCE_DIR / "scripts" / "checks.py", self.tree / "scripts")
        subprocess.run(["git", "init", "-q", self.tree], check=True)
        self.tool("cmake", "#!/bin/sh\n")

    def tool(self, name, text, folder="tools"):
        (self.tree / folder).mkdir(parents=True, exist_ok=True)
        path = self.tree / folder / name
        path.write_text(text)
        path.chmod(0o755)

    def ctest(self, **statuses):
        self.tool("ctest", CTEST.replace("STATUSES", repr(list(statuses.items()))))

    def check(self, *arguments):
        done = subprocess.run([sys.executable, self.tree / "scripts" / "checks.py", *arguments], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{self.tree / 'tools'}:{os.environ['PATH']}"})
        results = self.tree / "build" / "check" / "results.json"
        self.results = json.loads(results.read_text()) if results.exists() else None
        return done

    def test_tests_that_pass_hold(self):
        self.ctest(a="run", b="run", c="notrun")
        done = self.check("asan")
        self.assertRegex(done.stdout, r"(?m)^asan +held .*2 of 3 passed, 1 skipped")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.results[0]["seen"][0]["passed"], 2)

    def test_tests_are_run_as_many_at_a_time_as_is_said(self):
        self.ctest(a="run")
        self.check("--jobs", "3", "asan")
        self.assertRegex((self.tree / "build" / "check" / "asan.log").read_text(), r"(?m)^told: .* --parallel 3 ")

    def test_a_test_that_fails_is_named(self):
        self.ctest(a="run", the_bad_one="fail")
        done = self.check("tsan")
        self.assertRegex(done.stdout, r"(?m)^tsan +NOT HELD .*1 of 2 passed; failed: the_bad_one")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.results[0]["outcome"], "NOT HELD")

    def test_a_suite_without_tests_does_not_hold(self):
        self.ctest()
        self.assertEqual(self.check("asan").returncode, 1)
        self.ctest(a="notrun")
        self.assertEqual(self.check("asan").returncode, 1)

    def test_a_build_that_fails_does_not_hold_and_the_next_part_is_run(self):
        self.tool("cmake", '#!/bin/sh\ncase "$*" in *asan*) exit 1 ;; esac\n')
        self.ctest(a="run")
        done = self.check("tsan", "asan")
        self.assertRegex(done.stdout, r"(?m)^asan +NOT HELD .*build/check/asan\.log")
        self.assertRegex(done.stdout, r"(?m)^tsan +held")
        self.assertEqual(done.returncode, 1)

    def test_a_fuzzer_that_ends_badly_is_named(self):
        for name, status in (("fuzz_good", "0"), ("fuzz_bad", "77")):
            self.tool(name, FUZZER.replace("STATUS", status), "build/fuzz/bin")
        done = self.check("fuzz")
        self.assertRegex(done.stdout, r"(?m)^fuzz +NOT HELD .*fuzz_bad ended with 77")
        self.assertRegex(done.stdout, r"(?m)^fuzz: fuzz_good .*123 inputs, 45 edges")
        self.assertEqual(done.returncode, 1)

    def test_coverage_is_told_by_folder(self):
        self.ctest(a="run")
        report = {"files": [{"filename": name, "line_covered": covered, "line_total": total} for name, covered, total in
                            (("core/base/fd.cc", 5, 10), ("core/base/fd.h", 5, 10), ("daemon/main.cc", 1, 80))]}
        self.tool("gcovr", f"#!/usr/bin/env python3\nimport pathlib, sys\n"
                           f"pathlib.Path(sys.argv[sys.argv.index('--json-summary') + 1]).write_text({json.dumps(report)!r})\n")
        done = self.check("coverage")
        for line in (r"coverage: all .*11 of 100 lines, 11\.0%", r"coverage: core/base .*10 of 20 lines, 50\.0%",
                     r"coverage: daemon .*1 of 80"):
            self.assertRegex(done.stdout, f"(?m)^{line}")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_what_cannot_be_run_here_has_not_held(self):
        self.tool("package.sh", "#!/bin/sh\n", "scripts")
        self.tool("run.sh", "#!/bin/sh\necho 'SKIPPED: no namespaces'\nexit 77\n", "tests/systemd")
        done = self.check("systemd")
        self.assertRegex(done.stdout, r"(?m)^systemd +not run .*(no namespaces|needs root)")
        self.assertEqual(done.returncode, 77)

    def test_the_page_keeps_what_was_not_run_again(self):
        self.ctest(a="run", b="run")
        self.check("--record", "asan")
        self.ctest(a="run", b="fail")
        self.check("--record", "tsan")
        page = (self.tree / "docs" / "internals" / "checks.md").read_text()
        self.assertTrue(re.search(r"\| asan \| held \| 2 of 2 passed \|", page), page)
        self.assertTrue(re.search(r"\| tsan \| NOT HELD \| 1 of 2 passed; failed: b \|", page), page)

    def test_a_part_that_there_is_not(self):
        self.assertEqual(self.check("everything").returncode, 2)
        self.assertIsNone(self.results)


if __name__ == "__main__":
    unittest.main()
