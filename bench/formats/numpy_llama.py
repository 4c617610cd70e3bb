"""The bundled model's forward pass in NumPy, with K and V stored as somebody else says: what a format or a policy of
eviction would cost that the engine does not have. `kvtier-engine score` is the judge of whether it computes the same."""
import json
import math
import os
import pathlib
import struct

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # matrices are small; more threads wait for each other
import numpy as np  # noqa: E402

BLOCK_TOKENS = 16
ROWS = 512  # computed at once


def read_tensors(path):
    """{name: float32 array} of a safetensors file in BF16."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body, found = json.loads(data[8:8 + size]), data[8 + size:], {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "BF16":
            raise ValueError(f"{path}: {name} is {about['dtype']}; only BF16 is read here")
        begin, end = about["data_offsets"]
        wide = np.frombuffer(body[begin:end], np.uint16).astype(np.uint32) << 16
        found[name] = wide.view(np.float32).reshape(about["shape"])
    return found


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon)) * weight


def log_softmax(rows):
    shifted = rows - rows.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def bits_of(log_probabilities, ids):
    known = log_probabilities[np.arange(len(ids) - 1), ids[1:]]
    return -known.astype(np.float64) / math.log(2)


class Layer:
    """One layer's weights, and the two halves of it around attention. Arrays are [...][channels] in float32."""

    NAMES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}

    def __init__(self, model, tensors, index):
        self.model = model
        weight = {key: tensors[f"model.layers.{index}.{name}.weight"] for key, name in self.NAMES.items()}
        self.transposed = {key: np.ascontiguousarray(value.T) for key, value in weight.items()}
        self.before = tensors[f"model.layers.{index}.input_layernorm.weight"]
        self.behind = tensors[f"model.layers.{index}.post_attention_layernorm.weight"]

    def queries_keys_values(self, x, positions):
        """q[...][heads][dim], k and v[...][kv_heads][dim]; q and k rotated by `positions`, one a row of x."""
        m = self.model
        normed = norm(x, self.before, m.epsilon)

        def split(key):
            return (normed @ self.transposed[key]).reshape(*x.shape[:-1], -1, m.dim)

        return m.rotated(split("q"), positions), m.rotated(split("k"), positions), split("v")

    def finish(self, x, attended):
        """x of the next layer, of attended[...][heads][dim]."""
        x = x + attended.reshape(*x.shape[:-1], -1) @ self.transposed["o"]
        normed = norm(x, self.behind, self.model.epsilon)
        gate = normed @ self.transposed["gate"]
        return x + (gate / (1 + np.exp(-gate)) * (normed @ self.transposed["up"])) @ self.transposed["down"]


class NumpyLlama:
    """A LlamaForCausalLM with tied embeddings and plain rotary positions, of directory `model`."""

    def __init__(self, model):
        model = pathlib.Path(model)
        config = json.loads((model / "config.json").read_text())
        if config["architectures"] != ["LlamaForCausalLM"] or not config["tie_word_embeddings"] or config.get("rope_scaling"):
            raise ValueError(f"{model}: only a LlamaForCausalLM with tied embeddings and plain positions is computed here")
        tensors = read_tensors(model / "model.safetensors")
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim, self.theta, self.epsilon = config["head_dim"], config["rope_theta"], config["rms_norm_eps"]
        self.embedding = tensors["model.embed_tokens.weight"]
        self.last_norm = tensors["model.norm.weight"]
        self.layers = [Layer(self, tensors, index) for index in range(config["num_hidden_layers"])]

    def rotated(self, x, positions):
        half = self.dim // 2
        angles = np.asarray(positions, np.float64)[..., None, None] * self.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def logits(self, x):
        return norm(x, self.last_norm, self.epsilon) @ self.embedding.T

    def bits(self, ids, stored):
        """Bits of each token of ids[1:], as the engine counts them."""
        return bits_of(self.log_probabilities(ids, stored), ids)

    def log_probabilities(self, ids, stored):
        """[tokens][vocabulary], natural: every row attends to earlier blocks as stored and to its own block exactly.
        stored(layer, side, x[kv_heads][blocks][16][dim]) gives what is read back; side is "k" or "v"."""
        ids = np.asarray(ids)
        whole = len(ids) // BLOCK_TOKENS * BLOCK_TOKENS
        positions = np.arange(len(ids))
        x = self.embedding[ids]
        for index, layer in enumerate(self.layers):
            q, k, v = layer.queries_keys_values(x, positions)
            exact = {"k": k.transpose(1, 0, 2), "v": v.transpose(1, 0, 2)}
            read = {}
            for side, values in exact.items():
                blocks = values[:, :whole].reshape(self.kv_heads, -1, BLOCK_TOKENS, self.dim)
                read[side] = values.copy()
                read[side][:, :whole] = stored(index, side, blocks).reshape(self.kv_heads, whole, self.dim)
            x = layer.finish(x, self.attended(q.transpose(1, 0, 2), exact, read).transpose(1, 0, 2))
        return np.concatenate([log_softmax(self.logits(x[first:first + ROWS])) for first in range(0, len(ids), ROWS)])

    def attended(self, q, exact, read):
        """[heads][tokens][dim] of q in the same shape, and of K and V as computed and as read back."""
        tokens, group = q.shape[1], self.heads // self.kv_heads
        out = np.empty_like(q)
        for head in range(self.heads):
            k, v = exact["k"][head // group], exact["v"][head // group]
            k_read, v_read = read["k"][head // group], read["v"][head // group]
            for first in range(0, tokens, ROWS):
                last = min(first + ROWS, tokens)
                rows, columns = np.arange(first, last)[:, None], np.arange(last)[None, :]
                own = rows // BLOCK_TOKENS == columns[:, first:last] // BLOCK_TOKENS
                scores = q[head, first:last] @ k_read[:last].T
                scores[:, first:last] = np.where(own, q[head, first:last] @ k[first:last].T, scores[:, first:last])
                scores = np.where(columns <= rows, scores / np.float32(math.sqrt(self.dim)), np.float32(-np.inf))
                shares = np.exp(scores - scores.max(-1, keepdims=True))
                shares /= shares.sum(-1, keepdims=True)
                exactly = np.where(own, shares[:, first:last], np.float32(0))
                out[head, first:last] = shares @ v_read[:last] + exactly @ (v[first:last] - v_read[first:last])
        return out
