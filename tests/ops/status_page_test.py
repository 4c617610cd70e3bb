#!/usr/bin/env python3
"""The status page of a real daemon with real traffic, in a real browser. Exit code 77 (skipped) without one."""
import argparse
import pathlib
import shutil
import subprocess
import sys
import unittest

import chromium
import served_daemon

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>alert(1)<"  # no slash: a file's name
PROMPT = "What does the daemon do when a block is asked for? " * 40
ARGUMENTS = None


def generate(daemon, model):
    subprocess.run([ARGUMENTS.engine, "generate", "--model", model, "--socket", daemon.socket, "--prompt", PROMPT,
                    "--max-tokens", "4", "--flush", "--repeat", "3"], check=True, capture_output=True)


class StatusPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = served_daemon.ServedDaemon(ARGUMENTS.kvtierd, ARGUMENTS.scratch)
        cls.addClassCleanup(cls.daemon.close)
        # A model's name is its directory's, so that a client may call it anything that has no slash.
        hostile = cls.daemon.work / HOSTILE.replace("/", "\N{FRACTION SLASH}")
        shutil.copytree(ARGUMENTS.model, hostile)
        generate(cls.daemon, ARGUMENTS.model)
        generate(cls.daemon, hostile)
        cls.daemon.wait(lambda: any(p["looked_up"] for p in cls.daemon.status()["history"]["points"]))
        cls.browser = chromium.Chromium()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.problems.clear()

    def shown(self, width=1200, dark=False):
        self.browser.look(width, 900, dark)
        self.browser.open(self.daemon.url + "/")
        self.browser.wait_for("document.body && document.body.dataset.shown !== undefined")

    def texts(self, selector):
        return self.browser.js(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")

    def test_it_shows_the_numbers_of_status_and_nothing_goes_wrong(self):
        self.shown()
        status = self.daemon.status()
        self.assertEqual(self.browser.js("+document.body.dataset.shown"), status["lookups"]["looked_up"])
        self.assertGreater(status["lookups"]["looked_up"], 100)
        self.assertEqual(self.texts("#health"), ["healthy"])
        for tier in status["tiers"]:
            (text,) = self.texts("#tier-" + tier["tier"])
            self.assertIn(f"{tier['blocks']:,} blocks", text)
            self.assertEqual(self.browser.js(f"document.querySelector('#tier-{tier['tier']} meter').value"),
                             tier["used_bytes"])
            self.assertIn(self.browser.js(f"bytes({tier['taken_bytes']})") + " taken", text)
            if tier["tier"] != "disk":
                self.assertIn(self.browser.js(f"bytes({tier['reserved_bytes']})") + " reserved", text)
        daemon = dict(zip(self.texts("#daemon dt"), self.texts("#daemon dd")))
        self.assertEqual(daemon["looked up"], f"{status['lookups']['looked_up']:,}")
        hits = sum(status["lookups"][tier] for tier in ("device", "host", "disk"))
        self.assertEqual(daemon["hits"], f"{100 * hits / status['lookups']['looked_up']:.1f} %")
        rows = self.browser.js("[...document.querySelectorAll('#namespaces tr')].slice(1)"
                               ".map(r => [...r.cells].map(c => c.textContent))")
        self.assertEqual([row[2] for row in rows], [n["id"][:12] for n in status["namespaces"]])
        self.assertEqual([row[8] for row in rows], [f"{n['lookups']['looked_up']:,}" for n in status["namespaces"]])
        self.assertGreater(self.browser.js("document.querySelectorAll('#rate > svg rect').length"), 0)
        self.assertEqual(self.texts("#disks td")[0], status["disks"][0]["directory"])
        self.assertEqual(self.browser.problems, [])

    def test_names_that_mean_harm_are_shown_as_they_are_and_do_nothing(self):
        self.shown()
        names = self.texts("#namespaces td:first-child")
        self.assertTrue(any(name.startswith("<img src=x onerror=") for name in names), names)
        self.assertEqual(self.browser.js("document.title"), "kvtier")
        self.assertEqual(self.browser.js("document.querySelectorAll('img, #namespaces script').length"), 0)
        self.assertEqual(self.browser.problems, [])

    def test_script_that_is_not_the_pages_own_does_not_run(self):
        self.shown()
        self.browser.js("(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
                        "document.body.append(s); })()")
        self.assertIsNone(self.browser.js("window.ran"))
        self.assertTrue(any("Content Security Policy" in p for p in self.browser.problems), self.browser.problems)

    def test_narrow_and_wide_windows_in_both_colours_need_no_scrolling_to_the_side(self):
        grounds = set()
        for width in (400, 800, 1600):
            for dark in (False, True):
                self.shown(width, dark)
                self.assertLessEqual(self.browser.js("document.documentElement.scrollWidth"), width)
                self.assertTrue(self.browser.js(
                    "[...document.querySelectorAll('section')].every(s => s.getBoundingClientRect().right <= innerWidth)"))
                grounds.add(self.browser.js("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(grounds), 2)
        self.assertEqual(self.browser.problems, [])

    def test_text_stands_out_from_its_ground_and_everything_has_a_name(self):
        contrast = """(() => {
          const light = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const ground = e => { for (; e; e = e.parentElement) {
            const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; } };
          return Math.min(...[...document.querySelectorAll('h1, h2, td, th, dt, dd, span, p')].map(e => {
            const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05); }));
        })()"""
        for dark in (False, True):
            self.shown(1200, dark)
            self.assertGreaterEqual(self.browser.js(contrast), 4.5)
        self.assertEqual(self.browser.js(
            "[...document.querySelectorAll('meter, #rate > svg')].filter(e => !e.getAttribute('aria-label')).length"), 0)
        self.assertEqual(self.browser.js("document.querySelectorAll('html[lang], #health[role=status]').length"), 2)

    def test_it_loads_nothing_from_elsewhere(self):
        self.shown()
        self.assertEqual(self.browser.js(
            "performance.getEntriesByType('resource').map(r => new URL(r.name).pathname)"
            ".filter(p => p !== '/status').length"), 0)
        page = self.daemon.get("/")
        self.assertNotIn("http://", page.replace("http://www.w3.org/2000/svg", ""))
        self.assertNotIn("https://", page)


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--kvtierd", "--engine", "--model", "--scratch"):
        parser.add_argument(option, type=pathlib.Path, required=True)
    ARGUMENTS = parser.parse_args()
    if chromium.found() is None:
        print("skipped: no Chromium is installed (Debian package chromium)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0]], verbosity=2)


if __name__ == "__main__":
    main()
