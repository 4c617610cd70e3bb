"""What it would cost to evict tokens inside a request as H2O does (Zhang et al., H2O: Heavy-Hitter Oracle, 2023), and what would
be left of prefixes that others could use. Offline, in NumPy and FP32: the engine does not do it (docs/adr/0066).

Each KV head of each layer keeps `budget` tokens: half of them the latest, half those that were attended to most so far, counted
over the query heads that share it. `recent` is the peer of the same size: the first four tokens and the latest."""
import math

from numpy_llama import BLOCK_TOKENS, NumpyLlama, log_softmax, np

SINKS = 4


class Kept:
    """K and V that one layer keeps of several sequences: [sequences][kv_heads][budget + 1][dim]. One token at a time."""

    def __init__(self, sequences, model, budget, policy):
        shape = (sequences, model.kv_heads, budget + 1)
        self.k, self.v = (np.zeros((*shape, model.dim), np.float32) for _ in "kv")
        self.met, self.places = np.zeros(shape, np.float32), np.full(shape, -1)
        self.budget, self.policy = budget, policy
        self.count, self.free = 0, None

    def attend(self, q, k, v, place):
        """[sequences][heads][dim] of q in that shape; the token at `place`, with its k and v[sequences][kv_heads][dim], comes first."""
        if self.free is None:
            slot = np.full(self.places.shape[:2], self.count)
            self.count += 1
        else:
            slot = self.free
        at = np.ix_(range(slot.shape[0]), range(slot.shape[1])) + (slot,)
        self.k[at], self.v[at], self.met[at], self.places[at] = k, v, 0, place
        n, dim = self.count, q.shape[-1]
        grouped = q.reshape(*slot.shape, -1, dim)
        scores = grouped @ self.k[:, :, :n].swapaxes(2, 3) / np.float32(math.sqrt(dim))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        self.met[:, :, :n] += shares.sum(2)
        out = (shares @ self.v[:, :, :n]).reshape(q.shape)
        if n > self.budget:
            self.evict(place)
        return out

    def evict(self, place):
        if self.policy == "h2o":
            worth = np.where(self.places > place - self.budget // 2, np.inf, self.met)
        else:
            worth = np.where(self.places < SINKS, np.inf, self.places)
        self.free = worth.argmin(-1)
        np.put_along_axis(self.places, self.free[..., None], -1, -1)

    def has(self, tokens):
        """[sequences][kv_heads][tokens]: which of the first `tokens` are kept."""
        found = np.zeros((*self.places.shape[:2], tokens + 1), bool)
        np.put_along_axis(found, np.where(self.places < tokens, self.places, -1), True, -1)
        return found[..., :tokens]


class Run:
    """Sequences ids[sequences][tokens], token by token, then `greedy` tokens of each one's own. Keeps what is compared later."""

    def __init__(self, model, ids, budget, policy, greedy):
        tokens = ids.shape[1]
        layers = [Kept(len(ids), model, min(budget, tokens + greedy), policy) for _ in model.layers]
        self.bits, self.choices, self.last_keys, self.answers = [], [], [], []
        for place in range(tokens + greedy):
            if place == tokens:
                self.kept = np.stack([layer.has(tokens // 2) for layer in layers])
            known = ids[:, place] if place < tokens else self.answers[-1]
            x = model.embedding[known]
            for layer, kept in zip(model.layers, layers):
                q, k, v = layer.queries_keys_values(x, np.full(len(ids), place))
                x = layer.finish(x, kept.attend(q, k, v, place))
            rows = model.logits(x)
            if place + 1 < tokens:
                self.bits.append(-log_softmax(rows)[np.arange(len(ids)), ids[:, place + 1]] / math.log(2))
                self.choices.append(rows.argmax(-1))
                self.last_keys.append(k)
            else:
                self.answers.append(rows.argmax(-1))


def measure(directory, ids, sizes, tokens, greedy=32, shares=(50, 25), windows=None):
    """Rows {name, value, unit}: of windows of `tokens` tokens that do not overlap, with budgets of so many percent of one. Second
    halves are scored, where all budgets evict. Each first half is also followed by the next window's second half."""
    model, half = NumpyLlama(directory), tokens // 2
    whole = np.asarray(ids[:len(ids) // tokens * tokens]).reshape(-1, tokens)[:windows]
    crossed = np.concatenate([whole[:, :half], np.roll(whole, -1, 0)[:, half:]], 1)
    scored = sum(sizes[token] for token in whole[:, half:].ravel())
    full = Run(model, whole, tokens + greedy, "h2o", greedy)
    rows = []

    def add(name, value, unit):
        rows.append({"name": name, "value": float(value), "unit": unit})

    def quality(name, run):
        mine = np.stack(run.answers)[:, :len(whole)]
        add(f"{name}.bits_per_byte", np.stack(run.bits)[half - 1:, :len(whole)].sum() / scored, "bits a byte")
        add(f"{name}.same_choice", 100 * (np.stack(run.choices)[half - 1:, :len(whole)] == np.stack(full.choices)[half - 1:]).mean(), "%")
        add(f"{name}.same_answers", 100 * (mine == np.stack(full.answers)).all(0).mean(), "%")

    quality("all", full)
    for share in shares:
        budget = tokens * share // 100
        run = Run(model, np.concatenate([whole, crossed]), budget, "h2o", greedy)
        quality(f"h2o.{share}", run)
        quality(f"recent.{share}", Run(model, whole, budget, "recent", greedy))
        kept, other = run.kept[:, :len(whole)], run.kept[:, len(whole):]
        blocks = kept.reshape(*kept.shape[:3], -1, BLOCK_TOKENS)
        everywhere = blocks.all((0, 2, 4))
        add(f"h2o.{share}.prefix_kept", 100 * kept.mean(), "%")
        add(f"h2o.{share}.prefix_blocks_whole", 100 * everywhere.mean(), "%")
        add(f"h2o.{share}.prefix_blocks_empty", 100 * (~blocks.any((0, 2, 4))).mean(), "%")
        add(f"h2o.{share}.kept_behind_another_text", 100 * (kept & other).sum() / (kept | other).sum(), "%")
        mine, exact = (np.stack(each.last_keys)[half:, :len(whole)] for each in (run, full))
        add(f"h2o.{share}.keys_apart", 100 * np.sqrt(((mine - exact) ** 2).sum() / (exact ** 2).sum()), "%")
    return rows
