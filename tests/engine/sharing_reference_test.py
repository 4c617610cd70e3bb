#!/usr/bin/env python3
"""`kvtier-engine score` of models whose layers share K and V, against NumPy.

    sharing_reference_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m

The bundled model without the projections of K and V of some layers, which then attend to what an earlier layer made: the last
ones to that of the last layer before them (num_kv_shared_layers, as Gemma 3n has it), or in groups to that of the first
(use_cla and cla_share_factor, as Hunyuan-Large has it). Exit status 77, skipped, where no Python with NumPy is found.
"""
import argparse
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"  # which Debian's python3-numpy is for
try:
    import numpy as np
except ImportError:
    if sys.executable != SYSTEM_PYTHON and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    print("skipped: no Python here has NumPy")
    sys.exit(77)

BYTES = 1400


def read(path):
    """{name: (shape, bytes)} of a safetensors file in BF16."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    return {name: (about["shape"], body[slice(*about["data_offsets"])])
            for name, about in header.items() if name != "__metadata__"}


def write(path, tensors):
    header, at = {}, 0
    for name, (shape, body) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(body)]}
        at += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body for _, body in tensors.values()))


def numbers(tensor):
    shape, body = tensor
    return (np.frombuffer(body, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape).astype(np.float64)


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotated(x, theta):
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def log_probabilities(config, weights, ids, sources):
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    epsilon, theta = config["rms_norm_eps"], config["rope_theta"]
    x = weights["model.embed_tokens.weight"][ids]
    later = np.triu(np.ones((len(ids), len(ids)), bool), 1)
    made = {}
    for layer, source in enumerate(sources):
        def weight(name):
            return weights[f"model.layers.{layer}.{name}.weight"]

        normed = norm(x, weight("input_layernorm"), epsilon)
        q = rotated((normed @ weight("self_attn.q_proj").T).reshape(-1, heads, dim), theta)
        if source == layer:
            made[layer] = (rotated((normed @ weight("self_attn.k_proj").T).reshape(-1, kv_heads, dim), theta),
                           (normed @ weight("self_attn.v_proj").T).reshape(-1, kv_heads, dim))
        k, v = (np.repeat(each, heads // kv_heads, 1) for each in made[source])
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
        scores[:, later] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", shares, v).reshape(len(ids), -1) @ weight("self_attn.o_proj").T
        normed = norm(x, weight("post_attention_layernorm"), epsilon)
        gate = normed @ weight("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T
    rows = norm(x, weights["model.norm.weight"], epsilon) @ weights["model.embed_tokens.weight"].T
    rows -= rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    tensors = read(arguments.model / "model.safetensors")
    layers = config["num_hidden_layers"]
    ways = {"num_kv_shared_layers": ({"num_kv_shared_layers": 2}, [min(i, layers - 3) for i in range(layers)]),
            "use_cla": ({"use_cla": True, "cla_share_factor": 2}, [i - i % 2 for i in range(layers)])}
    for name, (fields, sources) in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder)
            shutil.copy(arguments.model / "tokenizer.json", model)
            (model / "config.json").write_text(json.dumps({**config, **fields}))
            lacking = tuple(f"model.layers.{i}.self_attn.{side}_proj." for i in range(layers) if sources[i] != i for side in "kv")
            own = {key: tensor for key, tensor in tensors.items() if not key.startswith(lacking)}
            write(model / "model.safetensors", own)
            text = model / "text.txt"
            text.write_text((arguments.model / "heldout.txt").read_text()[:BYTES])

            def engine(*command):
                return subprocess.run([arguments.engine, *command, "--model", model, "--text-file", text],
                                      capture_output=True, text=True, check=True).stdout

            ids = [int(word) for word in engine("tokenize").split()]
            found = log_probabilities(config, {key: numbers(tensor) for key, tensor in own.items()}, ids, sources)
            bits = -found[np.arange(len(ids) - 1), ids[1:]].sum() / math.log(2)
            scored = json.loads(engine("score", "--storage-format", "f32", "--json"))
            expected, told = bits / scored["bytes"], scored["formats"][0]["bits_per_byte"]
            print(f"{name}, K and V of layers {sorted(set(sources))} of {layers}: {told:.6f} bits per byte, NumPy {expected:.6f}")
            assert abs(told - expected) < 1e-4 * expected, "not what is written down"


if __name__ == "__main__":
    main()
