#!/usr/bin/env python3
"""scripts/check-docs.py sees each breach that is planted in a small tree, and nothing in the tree without one; and
scripts/performance.py sees a page, a ratio and a row that are not what the results say."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE_DIR = pathlib.Path(__file__).resolve().parent.parent.parent
DECISION = """# 1. Slots are counted

Status: accepted

## Context

## Decision

## Why

## Consequences
"""
TREE = {
    "README.md": "# It\n\n[All pages](docs/README.md#all)\n",
    "CONTRIBUTING.md": "# Contributing\n",
    "core/base/fd.h": "class Descriptor { void close_now(); };\nKVTIER_POINT(\"daemon.fd.closed\");\n",
    "docs/README.md": "# All\n\n[map](ARCHITECTURE.md) [decisions](adr/README.md) [guide](guide.md) [metrics](metrics.md)\n",
    "docs/ARCHITECTURE.md": "# Map\n\n| folder | |\n| --- | --- |\n| `core/` | `Descriptor` of `core/base/fd.h`, `fd.h` |\n",
    "docs/guide.md": "# Guide\n\n| KvtierDown | do it | `kvtier_blocks` |\n",
    "docs/metrics.md": "# Metrics\n\n`kvtier_blocks`\n",
    "docs/monitoring/kvtier-alerts.yml": "- alert: KvtierDown\n",
    "docs/adr/README.md": "# Decisions\n\n[form](template.md)\n\n"
                          "| 0001 | [Slots are counted](0001-slots.md) | accepted |\n",
    "docs/adr/0001-slots.md": DECISION,
    "docs/adr/template.md": DECISION,
}
CLAIMS = """
[machines]
A = "a machine"
[results."run.json"]
machine = "A"
date = "2026-01-01"
[[section]]
title = "Disk"
text = "All of it."
[[section.group]]
command = "bench"
file = "run.json"
peer = "bare"
rows = [{ w = "read", bound = ">= 0.90" }, { w = "write", bound = ">= 0.90" }]
[[section.group]]
command = "bench"
machine = "A"
date = "2026-01-01"
unit = "ms"
rows = [{ w = "first token", v = "10", of = "1,000", r = "100 x", bound = ">= 50 x" }]
[[plot]]
name = "disk"
title = "Disk"
x = "what"
y = "GB/s"
files = ["run.json"]
ticks = ["a", "b"]
series = [{ label = "rate", rows = ["read", "write"], limit = "bare" }]
"""
RESULT = [{"name": "read", "value": 1.9, "unit": "GB/s", "limit": 2.0, "ratio": 0.95},
          {"name": "write", "value": 1.6, "unit": "GB/s", "limit": 2.0, "ratio": 0.8}]


class PlantedTree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)

    def plant(self, name, text):
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text(text)

    def append(self, name, text):
        self.plant(name, (self.tree / name).read_text() + text)

    def run_script(self, script, *arguments):
        done = subprocess.run([sys.executable, SOURCE_DIR / "scripts" / script, "--tree", self.tree, *arguments],
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class DocsTest(PlantedTree):
    def setUp(self):
        super().setUp()
        for name, text in TREE.items():
            self.plant(name, text)

    def expect(self, *breaches):
        """What is reported has these parts, one a line, and nothing else."""
        status, output = self.run_script("check-docs.py")
        lines = output.splitlines()[:-1]
        self.assertEqual(len(lines), len(breaches), output)
        for line, breach in zip(lines, breaches):
            self.assertIn(breach, line)
        self.assertEqual(status, 1 if breaches else 0, output)

    def test_nothing_is_reported_where_nothing_is_planted(self):
        self.expect()

    def test_a_path_a_file_and_a_folder_that_are_not_there(self):
        self.append("docs/ARCHITECTURE.md", "\n`core/base/gone.h` `core/gone/`\n\n`gone.cc`\n\n`core/base/*.h`\n")
        self.expect("`core/base/gone.h`", "`core/gone/`", "`gone.cc`")

    def test_a_class_a_method_a_point_and_a_metric_that_are_not_there(self):
        self.plant("core/base/other.h", "void elsewhere();\n")
        self.append("docs/guide.md", "`Descriptor::close_now` `daemon.fd.closed`\n"
                                     "`Gone`\n`Descriptor::elsewhere`\n`daemon.fd.gone`\n`kvtier_gone`\n`gone_too()`\n")
        self.expect("no Gone", "Descriptor has no elsewhere", "daemon.fd.gone", "kvtier_gone", "gone_too")

    def test_a_link_and_a_heading_that_are_not_there(self):
        self.append("README.md", "[a](docs/gone.md)\n[b](docs/README.md#gone)\n[c](https://example.org/gone)\n")
        self.expect("docs/gone.md leads nowhere", "no heading #gone")

    def test_a_page_that_no_index_has(self):
        self.plant("docs/internals/lonely.md", "# Lonely\n")
        self.expect("docs/internals/lonely.md:1: no index")

    def test_a_decision_without_a_section_or_with_another_status_than_in_the_index(self):
        self.plant("docs/adr/0001-slots.md", DECISION.replace("## Why\n", "").replace("accepted", "superseded by 0002"))
        self.expect("not the sections", "not the title and status")

    def test_what_a_superseded_decision_names_may_be_gone(self):
        self.plant("docs/adr/0001-slots.md", DECISION.replace("accepted", "superseded by 0002") + "\n`core/gone.h`\n")
        self.plant("docs/adr/README.md", TREE["docs/adr/README.md"].replace("accepted", "superseded by 0002"))
        self.expect()

    def test_a_decision_that_is_named_and_not_there(self):
        self.append("docs/guide.md", "\nadr/0007 says why.\n")
        self.expect("no adr/0007")

    def test_an_alert_of_which_the_guide_says_nothing(self):
        self.append("docs/monitoring/kvtier-alerts.yml", "- alert: KvtierUnheard\n")
        self.expect("KvtierUnheard")

    def test_a_map_that_has_grown(self):
        self.append("docs/ARCHITECTURE.md", "\n" * 150)
        self.expect("more than 150 lines")

    def test_an_answer_of_the_readers_test_that_is_not_in_its_file(self):
        answers = "| where is it closed | `core/` | `core/base/fd.h` | `{}` |\n"
        self.append("CONTRIBUTING.md", "## The reader's test\n\n" + answers.format("Descriptor::close_now"))
        self.expect()
        self.append("CONTRIBUTING.md", answers.format("opened_late"))
        self.plant("core/base/other.h", "void opened_late();\n")
        self.expect("core/base/fd.h has no `opened_late`")
        self.plant("CONTRIBUTING.md", "## The reader's test\n\n" + answers.format("close_now").replace("`core/`", "`core/base/`"))
        self.expect("the map has no `core/base/`")


class FiguresTest(PlantedTree):
    def setUp(self):
        super().setUp()
        self.plant("docs/performance.toml", CLAIMS)
        self.plant("docs/results/run.json", json.dumps(RESULT))
        (self.tree / "docs/images").mkdir()
        self.assertEqual(self.run_script("performance.py")[0], 0)

    def page(self):
        return (self.tree / "docs/performance.md").read_text()

    def test_the_page_says_what_is_met_and_what_has_no_file(self):
        self.assertEqual(self.run_script("performance.py", "--check")[0], 0)
        self.assertIn("| read | 1 | A | 1.90 GB/s | bare 2 GB/s | 0.950 | >= 0.90 | yes |", self.page())
        self.assertIn("- write on A: 0.800, bound >= 0.90", self.page())
        self.assertRegex(self.page(), r"first token .* 100 x \| >= 50 x \| yes \| 2026-01-01 \| none, re-measure")

    def test_a_page_and_a_plot_that_were_changed_by_hand_are_stale(self):
        for name in ("docs/performance.md", "docs/images/disk.svg"):
            was = (self.tree / name).read_text()
            self.plant(name, was.replace("0", "1", 1))
            status, output = self.run_script("performance.py", "--check")
            self.assertEqual((status, output.splitlines()[0].split(":")[0]), (1, name))
            self.plant(name, was)

    def test_a_result_that_changed_makes_the_page_stale(self):
        self.plant("docs/results/run.json", json.dumps([RESULT[0] | {"value": 1.0}, RESULT[1]]))
        self.assertEqual(self.run_script("performance.py", "--check")[0], 1)

    def test_times_is_how_many_times_less_than_its_peer_a_row_is(self):
        self.plant("docs/results/run.json", json.dumps([RESULT[0] | {"value": 0.016}, RESULT[1]]))
        claims = CLAIMS.replace('peer = "bare"', 'peer = "bare"\ntimes = true').replace(">= 0.90", ">= 100 x", 1)
        self.plant("docs/performance.toml", claims)
        self.assertEqual(self.run_script("performance.py")[0], 0)
        self.assertIn("| 0.0160 GB/s | bare 2 GB/s | 125 x | >= 100 x | yes |", self.page())

    def test_percent_is_how_much_more_than_its_peer_a_row_is(self):
        self.plant("docs/results/run.json", json.dumps([RESULT[0] | {"value": 2.007}, RESULT[1]]))
        claims = CLAIMS.replace('peer = "bare"', 'peer = "bare"\npercent = true').replace(">= 0.90", "<= 0.5 %", 1)
        self.plant("docs/performance.toml", claims)
        self.assertEqual(self.run_script("performance.py")[0], 0)
        self.assertIn("| 2.007 GB/s | bare 2 GB/s | +0.350 % | <= 0.5 % | yes |", self.page())

    def test_a_ratio_that_does_not_follow_from_its_figures_is_an_error(self):
        self.plant("docs/performance.toml", CLAIMS.replace("100 x", "130 x"))
        status, output = self.run_script("performance.py")
        self.assertEqual(status, 1)
        self.assertIn("first token: 10 beside 1,000 is no ratio of 130 x", output)

    def test_a_row_that_no_result_has_is_an_error(self):
        self.plant("docs/results/run.json", json.dumps(RESULT[:1]))
        status, output = self.run_script("performance.py", "--check")
        self.assertEqual(status, 1)
        self.assertIn("has no row 'write'", output)


if __name__ == "__main__":
    unittest.main()
