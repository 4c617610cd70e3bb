"""Two processes of one program of 30 lines: the second loads what the first stored, or what it had stored when it was killed."""

import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

import pages

PROGRAM = pathlib.Path(__file__).resolve().parent / "two_processes.py"
BLOCKS = 192  # 64 KiB a layer: 96 MiB in all


class TwoProcessesTest(unittest.TestCase):
    def setUp(self):
        given = pages.arguments()
        self.daemon = pages.ServedDaemon(given.daemon, given.scratch, device="0", host="256MiB", disk="512MiB")
        self.addCleanup(self.daemon.close)

    def start(self, blocks):
        process = subprocess.Popen([sys.executable, PROGRAM, self.daemon.socket, str(blocks)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.kill)
        return process

    def run_to_the_end(self, blocks):
        """(blocks found, equal)"""
        process = self.start(blocks)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0)
        found = re.fullmatch(r"found (\d+) of \d+ blocks, equal: (True|False)\n", said)
        return int(found[1]), found[2] == "True"

    def test_the_program_has_30_lines(self):
        self.assertLessEqual(len([line for line in PROGRAM.read_text().splitlines() if line.strip()]), 30)

    def test_the_second_loads_what_the_first_stored(self):
        self.assertEqual(self.run_to_the_end(32), (0, True))
        self.assertEqual(self.run_to_the_end(32), (32, True))

    def test_of_one_that_is_killed_in_the_middle_of_its_store_nothing_is_half_there(self):
        dice, found_before, in_the_middle = random.Random(), 0, 0
        for _ in range(12):
            process = self.start(BLOCKS)
            self.assertRegex(process.stdout.readline(), "equal: True")
            self.wait_for_blocks(found_before + dice.randrange(1, 24))
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            self.daemon.wait(lambda: self.daemon.status()["reserved_slots"] == 0)
            self.assertEqual(self.daemon.status()["quarantined_slots"], 0)
            there = self.daemon.status()["blocks"]
            in_the_middle += found_before < there < BLOCKS
            found_before = there
            if there == BLOCKS:
                break
        self.assertGreaterEqual(in_the_middle, 1, "no process was killed in the middle")
        self.assertEqual(self.run_to_the_end(BLOCKS), (found_before, True))
        self.assertEqual(self.run_to_the_end(BLOCKS), (BLOCKS, True))

    def wait_for_blocks(self, blocks):
        deadline = time.monotonic() + 60
        while self.daemon.status()["blocks"] < min(blocks, BLOCKS):
            self.assertLess(time.monotonic(), deadline)


if __name__ == "__main__":
    pages.main()
