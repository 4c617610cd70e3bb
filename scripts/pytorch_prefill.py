#!/usr/bin/env python3
"""How long PyTorch takes to compute a prompt: plain Llama layers (BF16, SDPA with the kernel that PyTorch chooses,
or the flash kernel where that is faster) with random weights on the first GPU. Prints JSON rows, as
kvtier-gpu-engine-bench --baseline reads them.

    pytorch_prefill.py --out pytorch.json [--tokens 2048 8192 32768] [--rounds 3]
"""

import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# Llama-3.1-8B
VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM = 128256, 4096, 14336, 32, 32, 8, 128


def matrix(rows, columns):
    return torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda").uniform_(-1, 1) * (3 / columns) ** 0.5


class Layer:
    backend = contextlib.nullcontext

    def __init__(self):
        self.qkv = matrix((HEADS + 2 * KV_HEADS) * DIM, HIDDEN)
        self.o = matrix(HIDDEN, HEADS * DIM)
        self.gate_up = matrix(2 * INNER, HIDDEN)
        self.down = matrix(HIDDEN, INNER)
        self.norms = [torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda") for _ in range(2)]

    def __call__(self, x, cos, sin):
        n = x.shape[0]
        qkv = F.linear(F.rms_norm(x, (HIDDEN,), self.norms[0], 1e-5), self.qkv).view(n, -1, DIM)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        with self.backend():
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(a[0].transpose(0, 1).reshape(n, -1), self.o)
        gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.norms[1], 1e-5), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def first_token(tokens, embedding, layers, head):
    positions = torch.arange(len(tokens), device="cuda", dtype=torch.float32)
    angles = positions[:, None] * 500000.0 ** (-torch.arange(0, DIM, 2, device="cuda") / DIM)
    cos, sin = (t.to(torch.bfloat16)[:, None] for t in (angles.cos(), angles.sin()))
    x = embedding[tokens]
    for layer in layers:
        x = layer(x, cos, sin)
    logits = F.linear(F.rms_norm(x[-1:], (HIDDEN,), eps=1e-5), head)
    return logits.argmax().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = []
    with torch.no_grad():
        embedding, head = matrix(VOCAB, HIDDEN), matrix(VOCAB, HIDDEN)
        layers = [Layer() for _ in range(LAYERS)]
        for count in args.tokens:
            medians = {}
            for name, backend in (("chosen", contextlib.nullcontext),
                                  ("flash", lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION))):
                Layer.backend = staticmethod(backend)
                times = []
                for _ in range(args.rounds + 1):
                    tokens = torch.randint(VOCAB, (count,), device="cuda")
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    first_token(tokens, embedding, layers, head)
                    times.append((time.perf_counter() - begin) * 1e3)
                medians[name] = statistics.median(times[1:])
                rows.append({"name": f"pytorch prefill {count}, sdpa {name}", "value": medians[name], "unit": "ms"})
            rows.append({"name": f"pytorch prefill {count}", "value": min(medians.values()), "unit": "ms"})
    text = json.dumps(rows, indent=2)
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
