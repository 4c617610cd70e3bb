"""A cache, the copies between it and pages, and a daemon behind it that is not always there."""

from __future__ import annotations

import random

BLOCK = 4


class Prefix:
    """Keys that are the tokens themselves: two blocks with one key are the same."""

    def __init__(self, covers=()):
        self.covers = tuple(covers)
        self.list: list[int] = []

    def append(self, tokens):
        self.list.extend(tokens)

    @property
    def tokens(self):
        return len(self.list)

    @property
    def blocks(self):
        return len(self.list) // BLOCK

    @property
    def blocks_matchable(self):
        return (len(self.list) - 1) // BLOCK if self.list else 0

    def key(self, block):
        assert block < self.blocks
        return (self.covers, tuple(self.list[: (block + 1) * BLOCK]))


class World:
    """The cache, and the copies between it and pages."""

    def __init__(self, chance: random.Random, pages: int):
        self.chance = chance
        self.page = [None] * pages  # what it holds: a key, or something else
        self.reading: dict[int, int] = {}  # stores that still read a page
        self.filling: dict[int, int] = {}  # loads that may still write to it
        self.cached: dict[tuple, tuple] = {}
        self.there = True  # the daemon runs
        self.stopped = False  # it does not, and its memory can be read all the same
        self.copies: list = []
        self.worries: list[str] = []

    def match(self, prefix):
        if not self.there:
            return 0
        blocks = 0
        while blocks < prefix.blocks and prefix.key(blocks) in self.cached:
            blocks += 1
        return blocks

    def write(self, page, content):
        if self.reading.get(page) or self.filling.get(page):
            self.worries.append(f"page {page} is written while a copy uses it")
        self.page[page] = content

    def go_on(self):
        """Some copies come to their end; some blocks are lost; the daemon may stop, go and come."""
        for copy in list(self.copies):
            if self.chance.random() < (0.02 if self.stopped else 0.4):
                copy.end()
        for key in list(self.cached):
            if self.chance.random() < 0.02:
                del self.cached[key]
        if self.chance.random() < (0.1 if self.stopped else 0.01):
            self.stopped = not self.stopped
        if self.chance.random() < (0.01 if self.there else 0.2):
            self.there, self.stopped = not self.there, False
            if self.there and self.chance.random() < 0.5:
                self.cached.clear()


class Copy:
    def __init__(self, world, users, pages):
        self.world, self.users, self.pages, self.over = world, users, list(pages), False
        for page in self.pages:
            users[page] = users.get(page, 0) + 1
        world.copies.append(self)

    def end(self):
        if self.over:
            return
        self.over = True
        self.done()
        for page in self.pages:
            self.users[page] -= 1
        self.world.copies.remove(self)

    def ended(self):
        return self.over

    def wait(self):
        self.end()


class Store(Copy):
    def __init__(self, world, prefix, first, pages):
        self.keys = [prefix.key(first + i) for i in range(len(pages))]
        self.stored = 0
        super().__init__(world, world.reading, pages)

    def done(self):
        for key, page in zip(self.keys, self.pages):
            if self.world.page[page] != key:
                self.world.worries.append(f"a store of page {page} found something else than the block it was to be")
            if self.world.there and not self.world.stopped and self.world.chance.random() < 0.9:
                self.world.cached[key] = self.world.page[page]
                self.stored += 1

    def outcome(self):
        assert self.over
        return self.stored, len(self.keys) - self.stored


class Load(Copy):
    def __init__(self, world, prefix, first, pages):
        self.keys = [prefix.key(first + i) for i in range(len(pages))]
        self.good = 0
        super().__init__(world, world.filling, pages)

    def done(self):
        whole = self.world.there and not self.world.stopped and self.world.chance.random() < 0.85
        come = len(self.keys) if whole else self.world.chance.randrange(len(self.keys) + 1)
        for key, page in zip(self.keys[:come], self.pages):
            if key not in self.world.cached:
                break
            self.world.page[page] = self.world.cached[key]
            self.good += 1
        for page in self.pages[self.good :]:
            self.world.page[page] = "half a block"

    def finish(self):
        self.end()
        return self.good, self.good // 2


class Backend:
    def __init__(self, world):
        self.world = world

    def make_prefix(self, covers, answer):
        return Prefix(covers)

    def _begin(self):
        if self.world.chance.random() < 0.02:
            raise RuntimeError("the cache is having a bad day")

    def load(self, prefix, first, pages):
        assert first + len(pages) <= prefix.blocks_matchable
        self._begin()
        return Load(self.world, prefix, first, pages)

    def store(self, prefix, first, pages):
        self._begin()
        return Store(self.world, prefix, first, pages)
