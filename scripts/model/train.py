#!/usr/bin/env python3
"""Trains the byte-level BPE tokenizer and the small Llama model on corpus.py's text.

    train.py tokenizer --corpus DIR --out DIR           writes tokenizer.json
    train.py model --corpus DIR --out DIR --minutes 8   writes model.safetensors, config.json, train-log.json

The model run is seeded, and ends when its minutes are over: the learning rate
follows the share of the time that has passed, so a faster machine sees more tokens.
"""

import argparse
import json
import lzma
import math
import time
from pathlib import Path

END = "<|endoftext|>"


def documents(corpus, name):
    """The texts of one part of the corpus, in file order."""
    path = corpus / (name + ".jsonl")
    opened = open(path, encoding="utf-8") if path.exists() else lzma.open(str(path) + ".xz", "rt", encoding="utf-8")
    with opened as file:
        for line in file:
            yield json.loads(line)["text"]


def train_tokenizer(args):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2048, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = (text for i, text in enumerate(documents(args.corpus, "train")) if i % args.every == 0)
    tokenizer.train_from_iterator(texts, trainer)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    print("vocabulary", tokenizer.get_vocab_size())


def encode(tokenizer, texts):
    """All texts as one stream of ids, each text closed by the end token."""
    import numpy as np

    texts, end = list(texts), tokenizer.token_to_id(END)
    parts = []
    for start in range(0, len(texts), 2000):
        for encoding in tokenizer.encode_batch_fast(texts[start:start + 2000], add_special_tokens=False):
            parts.append(np.array(encoding.ids + [end], dtype=np.int16))
    return np.concatenate(parts)


def schedule(progress, warmup=0.015):
    """Learning-rate factor: short warm-up, then a cosine down to 1 %."""
    if progress < warmup:
        return progress / warmup
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup) / (1 - warmup))))


def train_model(args):
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer

    from model import CONFIG, Llama, rope_tables

    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    begin = time.time()
    stream = {name: torch.from_numpy(encode(tokenizer, documents(args.corpus, name))).cuda()
              for name in ("train", "heldout")}
    print({name: len(ids) for name, ids in stream.items()}, "tokens encoded in %.0f s" % (time.time() - begin), flush=True)

    model = Llama(CONFIG).cuda()
    print(sum(p.numel() for p in model.parameters()), "parameters")
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": args.weight_decay},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model, dynamic=False)
    cos, sin = rope_tables(CONFIG, args.long_length, "cuda")
    generator = torch.Generator("cuda").manual_seed(args.seed)

    def batch(ids, length, count):
        starts = torch.randint(len(ids) - length - 1, (count, 1), generator=generator, device="cuda")
        return ids[starts + torch.arange(length + 1, device="cuda")].long()

    def loss_of(ids, length):
        tokens = batch(ids, length, args.batch_tokens // length)
        with torch.autocast("cuda", torch.bfloat16):
            return compiled(tokens, cos[:length], sin[:length])

    for length in (args.length, args.long_length):  # compiles both shapes before the clock starts
        loss_of(stream["train"], length).backward()
        model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    print("compiled after %.0f s" % (time.time() - begin), flush=True)

    log, step, seen, clock = [], 0, 0, time.time()
    running = torch.zeros((), device="cuda")
    while (progress := (time.time() - clock) / (60 * args.minutes)) < 1:
        length = args.long_length if progress > args.long_from else args.length
        for group in optimizer.param_groups:
            group["lr"] = args.lr * schedule(progress)
        loss = loss_of(stream["train"], length)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()
        step, seen = step + 1, seen + args.batch_tokens
        if step % 10 == 0:
            torch.cuda.synchronize()  # keeps the clock honest: the queue stays short
        if step % 200 == 0:
            heldout = loss_of(stream["heldout"], length).item()  # no_grad here would compile once more
            row = {"step": step, "seconds": round(time.time() - clock, 1), "tokens": seen, "length": length,
                   "train_loss": round(running.item() / 200, 4), "heldout_loss": round(heldout, 4)}
            running.zero_()
            log.append(row)
            print(json.dumps(row), flush=True)

    weights = {name: p.detach().to(torch.bfloat16).contiguous().cpu() for name, p in model.named_parameters()}
    save_file(weights, str(args.out / "model.safetensors"), metadata={"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (args.out / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 0}, indent=2) + "\n")
    summary = {"steps": step, "tokens_seen": seen, "minutes": args.minutes, "seed": args.seed, "lr": args.lr,
               "batch_tokens": args.batch_tokens, "training_tokens": len(stream["train"]),
               "device": torch.cuda.get_device_name(), "torch": torch.__version__, "log": log}
    (args.out / "train-log.json").write_text(json.dumps(summary, indent=1) + "\n")
    print("steps", step, "tokens", seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["tokenizer", "model"])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="the tokenizer learns from every n-th document")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--long-length", type=int, default=8192)
    parser.add_argument("--long-from", type=float, default=0.8, help="share of the time after which windows are long")
    args = parser.parse_args()
    (train_tokenizer if args.what == "tokenizer" else train_model)(args)


if __name__ == "__main__":
    main()
