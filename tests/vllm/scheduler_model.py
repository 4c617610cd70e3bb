"""vLLM's scheduler and its workers, one or two ranks, as far as a connector sees them."""

from __future__ import annotations

import collections
import random

from cache_model import BLOCK, Backend, Prefix, World
from parts import part

planner_module, transfers_module = part("planner"), part("transfers")


class Request:
    def __init__(self, number, prompt, answer, covers):
        self.request_id = f"r{number}"
        self.prompt = prompt
        self.answer = answer  # tokens that it will get
        self.known = list(prompt)  # with asynchronous scheduling fewer than are computed
        self.covers = covers
        self.pages: list[int] = []
        self.computed = 0
        self.waits_for_load = False
        self.load_failed = False
        self.failed: set[int] = set()  # pages that its load did not fill, as far as is known
        self.loads = (0, 0)
        self.ended = False

    @property
    def all_token_ids(self):
        return self.known

    @property
    def total(self):
        return len(self.prompt) + self.answer

    def token(self, at):
        return self.prompt[at] if at < len(self.prompt) else hash((self.covers, tuple(self.prompt), at)) % 50


class Scheduler:
    """vLLM's, as far as a connector sees it."""

    def __init__(self, seed: int):
        self.chance = chance = random.Random(seed)
        self.pages = chance.randrange(12, 60)
        # Each rank has pages and blocks of its own.
        self.worlds = [World(chance, self.pages) for _ in range(chance.choice([1, 1, 2]))]
        self.behind = chance.random() < 0.5  # steps are scheduled before the last one's tokens are known
        self.chunk = chance.choice([3, 8, 1000])
        self.faults = 0
        self.planner = planner_module.Planner(
            BLOCK,
            lambda covers: Prefix(covers) if len(covers) < 3 else None,
            lambda prefix: min(world.match(prefix) for world in self.worlds),
            lambda r: list(r.covers),
            least_blocks=chance.choice([1, 1, 2]),
            clock=lambda: float(self.steps),
            late_after_s=20.0,
            pause_s=10.0,
            on_fault=self._fault,
        )
        self.steps = 0
        self.unreadable = 0  # steps whose scheduler output could not be read
        self.workers = [transfers_module.Transfers(Backend(world), lambda: 0.0, self._fault) for world in self.worlds]
        self.said = collections.Counter()  # by how many ranks: what is over, and of which request
        self.free = list(range(self.pages))
        self.own_cache: dict[tuple, int] = {}  # of free and used pages
        self.users = [0] * self.pages
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.live: dict[str, Request] = {}
        self.received: set[str] = set()
        self.finished_ids: set[str] = set()
        self.unpaid: list[tuple[Request, int]] = []  # tokens of the last step, not known yet
        self.done = self.preempted = 0

    def _fault(self, what, fault):
        self.faults += 1

    # pages

    def take(self, count):
        if len(self.free) < count:
            return None
        pages = [self.free.pop(0) for _ in range(count)]
        for page in pages:
            self.users[page] = 1
            self.own_cache = {key: p for key, p in self.own_cache.items() if p != page}
        return pages

    def let_go(self, pages):
        for page in pages:
            self.users[page] -= 1
            assert self.users[page] >= 0
            if self.users[page] == 0:
                self.free.append(page)

    def own_hit(self, request):
        prefix = Prefix(request.covers)
        prefix.append(request.known)
        pages = []
        for block in range(prefix.blocks_matchable):
            page = self.own_cache.get(prefix.key(block))
            if page is None:
                break
            pages.append(page)
        return pages

    # a step

    def admit(self, request):
        """False: there is no room."""
        hit = self.own_hit(request)
        computed = len(hit) * BLOCK
        for _ in range(self.chance.choice([1, 1, 2])):
            external = self.planner.loadable_tokens(request, computed)
        assert external % BLOCK == 0 and computed + external < len(request.known)
        assert not (external and request.load_failed), "loaded for again after a load that failed"
        for page in hit:
            if self.users[page] == 0:
                self.free.remove(page)
            self.users[page] += 1
        now = min(len(request.known), computed + external + (0 if external else self.chunk))
        more = self.take(-(-now // BLOCK) - len(hit))
        if more is None or self.chance.random() < 0.05:
            self.let_go(hit + (more or []))
            return False
        request.pages = hit + more
        request.computed = computed + external
        request.loads = (len(hit), external // BLOCK)
        self.planner.admitted(request, request.pages, external)
        request.waits_for_load = external > 0
        return True

    def preempt(self, request):
        self.preempted += 1
        self.running.remove(request)
        self.waiting.insert(0, request)
        self.let_go(request.pages)
        request.pages, request.computed = [], 0
        self.unpaid = [(r, n) for r, n in self.unpaid if r is not request]

    def end(self, request):
        request.ended = True
        keep = self.planner.ended(request)
        self.finished_ids.add(request.request_id)
        for line in (self.waiting, self.running):
            if request in line:
                line.remove(request)
        self.unpaid = [(r, n) for r, n in self.unpaid if r is not request]
        self.done += 1
        # A load in flight is waited for; whose load has come in the meantime has been.
        if request.waits_for_load and request.request_id not in self.received:
            return
        request.waits_for_load = False
        self.received.discard(request.request_id)
        if not keep:
            self.forget(request)

    def forget(self, request):
        self.let_go(request.pages)
        request.pages = []
        del self.live[request.request_id]

    def schedule(self):
        step = []
        for request in list(self.running):
            if request not in self.running:
                continue
            # Tokens that are not known yet are computed all the same, one a step.
            ahead = sum(1 for r, _ in self.unpaid if r is request)
            want = min(len(request.known) + ahead - request.computed, self.chunk, request.total - 1 - request.computed)
            if want <= 0:
                continue
            need = -(-(request.computed + want) // BLOCK) - len(request.pages)
            more = []
            while need > 0 and (more := self.take(need)) is None:
                victim = self.running[-1]
                self.preempt(victim)
                step = [s for s in step if s[0] is not victim]
                if victim is request:
                    break
            if request not in self.running:
                continue
            request.pages += more or []
            step.append((request, want, more or None, False))
        for request in list(self.waiting):
            if request.waits_for_load:
                if request.request_id not in self.received:
                    continue
                self.received.discard(request.request_id)
                request.waits_for_load = False
            elif not self.admit(request):
                break
            elif request.waits_for_load:
                continue
            want = min(len(request.known) - request.computed, self.chunk)
            need = -(-(request.computed + want) // BLOCK) - len(request.pages)
            more = self.take(need) if need > 0 else []
            if more is None:
                self.let_go(request.pages)
                request.pages, request.computed = [], 0
                break
            request.pages += more
            self.waiting.remove(request)
            self.running.append(request)
            step.append((request, want, list(request.pages), True))
        return step

    def step(self):
        step = self.schedule()
        orders = self.planner.orders(self.scheduled(step))
        finished, self.finished_ids = self.finished_ids, set()
        for worker in self.workers:
            worker.spare(orders.fresh)
            worker.learn(orders)
            worker.begin_loads(orders.loads)
        for request, want, _, _ in step:
            self.compute(request, want)
        sent, received, failed = set(), set(), set()
        for worker, world in zip(self.workers, self.worlds):
            worker.begin_stores(orders.stores)
            world.go_on()
            sent_here, received_here = worker.results(finished, orders.forgotten, orders.silent)
            sent |= self.said_by_all("sent", sent_here)
            received |= self.said_by_all("received", received_here)
            failed |= worker.take_failed_pages()
        # Somebody aborts a request while the worker's answer is on its way.
        loading = [r for r in self.waiting if r.waits_for_load]
        if loading and self.chance.random() < 0.1:
            self.end(self.chance.choice(loading))
        if self.behind:
            due, self.unpaid = self.unpaid, []
        for request, want, _, _ in step:
            if request.computed >= len(request.known) + sum(1 for r, _ in (due if self.behind else []) if r is request):
                self.unpaid.append((request, request.computed))
        if not self.behind:
            due, self.unpaid = self.unpaid, []
        self.learn(due)
        if failed:
            self.planner.failed_pages(failed)
        for request in self.live.values():
            if request.waits_for_load:
                request.failed |= failed.intersection(request.pages)
        self.planner.landed(received)
        for request_id in received:
            self.load_came(self.live[request_id])
        for request_id in sent:
            request = self.live[request_id]
            assert request.ended, "reported as sent before it ended"
            if not request.waits_for_load:
                self.forget(request)

    def said_by_all(self, what, request_ids):
        """Those that no rank has still to say it of."""
        for request_id in request_ids:
            self.said[what, request_id] += 1
            assert self.said[what, request_id] <= len(self.workers)
        whole = {request_id for request_id in request_ids if self.said[what, request_id] == len(self.workers)}
        for request_id in whole:
            del self.said[what, request_id]
        return whole

    def scheduled(self, step):
        for request, want, pages, all_pages in step:
            if self.chance.random() < 0.001:
                self.unreadable += 1
                raise AttributeError("vLLM has another name for it now")
            after = request.computed + want
            yield planner_module.Scheduled(request.request_id, pages, all_pages, request.computed, after)

    def compute(self, request, want):
        prefix = Prefix(request.covers)
        prefix.append([request.token(at) for at in range(request.computed + want)])
        for block in range(request.computed // BLOCK):
            page = request.pages[block]
            for world in self.worlds:
                assert world.page[page] == prefix.key(block), (
                    f"{request.request_id} computes on block {block}, page {page}: {world.page[page]}"
                )
        for block in range(request.computed // BLOCK, prefix.blocks):
            self.write(request.pages[block], prefix.key(block))
            self.own_cache.setdefault(prefix.key(block), request.pages[block])
        if prefix.tokens % BLOCK:
            self.write(request.pages[prefix.blocks], "an open block")
        request.computed += want

    def write(self, page, content):
        for world in self.worlds:
            world.write(page, content)

    def learn(self, due):
        for request, at in due:
            if request.ended or request.pages == [] or len(request.known) > at:
                continue
            request.known.append(request.token(at))
            if len(request.known) >= request.total:
                self.end(request)

    def load_came(self, request):
        first, blocks = request.loads
        good = 0
        while good < blocks and request.pages[first + good] not in request.failed:
            good += 1
        request.computed = (first + good) * BLOCK
        request.load_failed |= good < blocks
        request.failed = set()
        if request.ended:
            request.waits_for_load = False
            self.forget(request)
            return
        self.received.add(request.request_id)

    def run(self, requests):
        chance = self.chance
        shared = [[chance.randrange(50) for _ in range(40)] for _ in range(3)]
        number = 0
        while number < requests or self.live:
            self.steps += 1
            assert self.steps < 20_000, (
                f"requests do not end: {[(r.request_id, r.waits_for_load) for r in self.live.values()]}"
            )
            if number < requests and chance.random() < 0.4:
                prompt = chance.choice(shared)[: chance.randrange(1, 36)] + [
                    chance.randrange(50) for _ in range(chance.randrange(1, 8))
                ]
                covers = chance.choice([(), (), ((0, 1000, b"salt"),), ((0, 1, b"a"),) * 3])
                if len(prompt) + 12 <= self.pages * BLOCK // 2:
                    request = Request(number, prompt, chance.randrange(1, 12), covers)
                    self.live[request.request_id] = request
                    self.waiting.append(request)
                    if chance.random() < 0.5:
                        self.planner.arrived(request)
                number += 1
            if self.live and chance.random() < 0.03:
                victim = chance.choice(list(self.live.values()))
                if not victim.ended:
                    self.end(victim)
            self.step()
            assert not any(world.worries for world in self.worlds), [world.worries for world in self.worlds]
        for _ in range(50):
            for world in self.worlds:
                for copy in list(world.copies):
                    copy.end()
            self.step()
        assert len(self.free) == self.pages, "pages were not given back"
        assert not len(self.planner) and not any(map(len, self.workers)), "somebody is remembered"
        return self
