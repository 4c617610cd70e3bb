#!/usr/bin/env python3
"""scripts/check-structure.py sees each breach that is planted in a small tree, and nothing in the tree without one."""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE_DIR = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = SOURCE_DIR / "scripts" / "check-structure.py"

# As little as has every kind of include that is right.
TREE = {
    "core/include/kvtier/record.h": "#pragma once\n#include <cstdint>\n",
    "core/base/fd.h": "#pragma once\n",
    "core/base/fd.cc": '#include "core/base/fd.h"\n#include <unistd.h>\n',
    "core/wire/frame.h": '#include "core/base/fd.h"\n#include "core/wire/kvtier.capnp.h"\n',
    "client/include/kvtier/client.h": "#pragma once\n#include <kvtier/record.h>\n",
    "client/session/session.h": '#include <kvtier/client.h>\n#include "core/wire/frame.h"\n',
    "client/session/session.cc": "namespace kvtier {\nResult<int> Session::open() {}\nSession::~Session() {}\n"
                                 "}  // namespace kvtier\n",
    "client/session/frames.cc": "namespace kvtier {\nstd::map<int, std::vector<int>> Session::frames() {}\n"
                                "}  // namespace kvtier\n",
    "daemon/server/server.cc": '#include "daemon/session/session.h"\n',
    "daemon/session/session.h": '#include "core/wire/frame.h"\n',
    "tests/client/session_test.cc": '#include "client/session/session.h"\n',
}


def check(tree):
    done = subprocess.run([sys.executable, SCRIPT, "--tree", tree], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


class StructureTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        for name, text in TREE.items():
            self.plant(name, text)

    def plant(self, name, text):
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text(text)

    def expect(self, *beginnings):
        """Lines that begin like these are all that is reported."""
        status, lines = check(self.tree)
        self.assertEqual(len(lines), len(beginnings), lines)
        for line, beginning in zip(sorted(lines), sorted(beginnings)):
            self.assertTrue(line.startswith(beginning), lines)
        self.assertEqual(status, 1 if beginnings else 0)

    def test_a_tree_without_a_breach_passes(self):
        self.expect()

    def test_an_include_against_the_direction(self):
        self.plant("core/base/fd.cc", '#include "core/base/fd.h"\n\n#include "daemon/session/session.h"\n')
        self.expect("core/base/fd.cc:3: core/base/ may not include daemon/session/")

    def test_an_include_of_an_inside_by_its_public_neighbour(self):
        self.plant("client/include/kvtier/client.h", '#include "client/session/session.h"\n')
        self.expect("client/include/kvtier/client.h:1: client/include/ may not include client/session/")

    def test_brackets_hide_no_include(self):
        self.plant("core/base/fd.cc", "#include <client/session/session.h>\n#  include <kvtier/client.h>\n")
        self.expect("core/base/fd.cc:1: core/base/ may not include client/session/",
                    "core/base/fd.cc:2: core/base/ may not include client/include/")

    def test_an_include_that_is_not_from_the_top(self):
        self.plant("core/base/fd.cc", '#include "fd.h"\n#include "../base/fd.h"\n#include HEADER\n')
        self.expect(*(f"core/base/fd.cc:{line}:" for line in (1, 2, 3)))

    def test_a_folder_that_the_table_does_not_know(self):
        self.plant("daemon/extras/extra.cc", "")
        self.expect("daemon/extras/extra.cc:1: a folder that the table")

    def test_a_folder_with_26_sources(self):
        for number in range(22):
            self.plant(f"client/session/part{number}.cc", "")
        self.expect()
        self.plant("client/session/part22.cc", "")
        self.expect("client/session:1: 26 sources")

    def test_a_file_with_501_lines(self):
        self.plant("tests/client/long_test.cc", "\n" * 500)
        self.expect()
        self.plant("tests/client/long_test.cc", "\n" * 501)
        self.plant("scripts/long.sh", "\n" * 501)
        self.expect("tests/client/long_test.cc:501:", "scripts/long.sh:501:")

    def test_a_class_in_three_files(self):
        for definition in ("void Session::close() {}", "Session::Session(int a,\n", "boost::asio::awaitable<void> Session::run() {",
                           "std::function<void(int)> Session::heard(", "bool Session::operator==(const Session& other) {",
                           "kvtier::Session::Part Session::part() {", "template <typename T>\nT* Session::as() {"):
            with self.subTest(definition):
                self.plant("client/session/third.cc", f"namespace kvtier {{\n{definition}\n}}  // namespace kvtier\n")
                self.expect("client/session/frames.cc:1: Session is in 3 files")

    def test_what_is_no_method_of_the_class(self):
        for text in ("namespace kvtier {\n  Session::open();\nconst int kA = Session::open();\n}  // namespace kvtier\n",
                     "namespace kvtier::engine {\nvoid Session::open() {}\n}  // namespace kvtier::engine\n",
                     "namespace kvtier {\nnamespace {\nvoid Session::open() {}\n}  // namespace\n}  // namespace kvtier\n",
                     "namespace kvtier {\nvoid Session::Part::open() {}\n}  // namespace kvtier\n"):
            with self.subTest(text):
                self.plant("client/session/third.cc", text)
                self.expect()

    def test_a_source_by_another_suffix(self):
        self.plant("core/base/fd.cpp", '#include "daemon/session/session.h"\n')
        self.expect("core/base/fd.cpp:1: sources here are called")

    def test_a_tree_without_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            status, lines = check(folder)
            self.assertEqual((status, len(lines)), (1, 1), lines)

    def test_what_git_ignores_is_not_checked_and_what_is_not_committed_yet_is(self):
        subprocess.run(["git", "init", "-q", self.tree], check=True)
        self.plant(".gitignore", "/build-*/\n")
        self.plant("build-x/core/base/fd.cc", '#include "fd.h"\n')
        self.expect()
        self.plant("core/base/new.cc", '#include "fd.h"\n')
        self.expect("core/base/new.cc:1:")


class TableTest(unittest.TestCase):
    """The table itself, for this tree."""

    def setUp(self):
        sys.path.insert(0, str(SCRIPT.parent))
        self.addCleanup(sys.path.remove, str(SCRIPT.parent))
        specification = importlib.util.spec_from_file_location("check_structure", SCRIPT)
        self.checker = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(self.checker)
        self.names = [name for name in self.checker.names_in(SOURCE_DIR) if self.checker.SOURCE.search(name)]
        self.rules = {name: self.checker.rule_for(name) for name in self.names}

    def test_every_row_is_for_something(self):
        stale = sorted(set(self.checker.ARROWS) - set(self.rules.values()))
        self.assertEqual(stale, [])

    def test_every_arrow_leads_somewhere(self):
        stale = [(row, to) for row, arrows in self.checker.ARROWS.items() for to in arrows
                 if not any(name.startswith(to) for name in self.names)]
        self.assertEqual(stale, [])

    def test_the_arrows_make_no_circle(self):
        left = {row: {rule for name, rule in self.rules.items() if any(name.startswith(to) for to in arrows)} - {row}
                for row, arrows in self.checker.ARROWS.items()}
        # Rows whose arrows lead to none that is left are taken away until there are no more of them.
        while grounded := [row for row, to in left.items() if not to & set(left)]:
            for row in grounded:
                del left[row]
        self.assertEqual(left, {})


if __name__ == "__main__":
    unittest.main()
