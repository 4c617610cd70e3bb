#!/usr/bin/env python3
"""`kvtier-engine score --sinks --window` against attention sinks as they are written down, in NumPy.

    sinks_reference_test.py --engine bin/kvtier-engine --model engine_adapter/models/docs-4m

Here K is kept before its rotation, and every token rotates what it attends to by its place in the cache: the sinks first,
then the window (Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2024). The engine keeps K rotated by its
place in the text. Exit status 77, skipped, where no Python with NumPy
is found (Debian's python3-numpy).
"""
import argparse
import json
import math
import os
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


def tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body, found = json.loads(data[8:8 + size]), data[8 + size:], {}
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            assert about["dtype"] == "BF16"
            wide = np.frombuffer(body[begin:end], np.uint16).astype(np.uint32) << 16
            found[name] = wide.view(np.float32).reshape(about["shape"]).astype(np.float64)
    return found


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotated(x, positions, theta):
    """x[tokens][heads][dim] by each token's place."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions)[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def logits(config, weights, ids, sinks, window):
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    epsilon, theta = config["rms_norm_eps"], config["rope_theta"]
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        w = {name: weights[f"model.layers.{layer}.{name}.weight"] for name in (
            "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
            "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}
        normed = norm(x, w["input_layernorm"], epsilon)
        q = (normed @ w["self_attn.q_proj"].T).reshape(-1, heads, dim)
        k = (normed @ w["self_attn.k_proj"].T).reshape(-1, kv_heads, dim)
        v = (normed @ w["self_attn.v_proj"].T).reshape(-1, kv_heads, dim)
        attended = np.zeros_like(q)
        for token in range(len(ids)):
            cache = [j for j in range(token + 1) if j < sinks or j > token - window]
            places = np.arange(len(cache))
            own = rotated(q[token:token + 1], places[-1:], theta)[0]
            keys = np.repeat(rotated(k[cache], places, theta), heads // kv_heads, 1)
            scores = np.einsum("hd,jhd->hj", own, keys) / math.sqrt(dim)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            attended[token] = np.einsum("hj,jhd->hd", shares, np.repeat(v[cache], heads // kv_heads, 1))
        x = x + attended.reshape(len(ids), -1) @ w["self_attn.o_proj"].T
        normed = norm(x, w["post_attention_layernorm"], epsilon)
        gate = normed @ w["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    return norm(x, weights["model.norm.weight"], epsilon) @ weights["model.embed_tokens.weight"].T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    weights = tensors(arguments.model / "model.safetensors")
    text = (arguments.model / "heldout.txt").read_text()[:BYTES]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()

        def engine(*command):
            return subprocess.run([arguments.engine, *command, "--model", arguments.model, "--text-file", file.name],
                                  capture_output=True, text=True, check=True).stdout

        ids = [int(word) for word in engine("tokenize").split()]
        for sinks, window in ((0, 64), (4, 64), (4, 16), (20, 48)):
            rows = logits(config, weights, ids, sinks, window)[:-1]
            shifted = rows - rows.max(-1, keepdims=True)
            logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
            bits = -logprobs[np.arange(len(ids) - 1), ids[1:]].sum() / math.log(2)
            scored = json.loads(engine("score", "--storage-format", "f32", "--sinks", str(sinks), "--window", str(window), "--json"))
            expected = bits / scored["bytes"]
            found = scored["formats"][0]["bits_per_byte"]
            print(f"{len(ids)} tokens, {sinks} sinks, window {window}: {found:.6f} bits per byte, NumPy {expected:.6f}")
            assert scored["tokens"] == len(ids) - 1 and len(ids) > 5 * window
            assert abs(found - expected) < 1e-4 * expected, "not what is written down"


if __name__ == "__main__":
    main()
