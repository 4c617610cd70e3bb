#!/usr/bin/env python3
"""Held-out bits per byte and two samples, through the transformers library in float32.

    evaluate.py --model DIR --corpus DIR --out eval.json
"""

import argparse
import json
import math
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from train import END, documents

PROMPTS = ("The package manager keeps a list of",
           "Before you start, make a backup of the database. A backup can be made while the server is running")


def bits_per_byte(model, ids, text_bytes, context, device):
    """Total negative log2-likelihood of the stream, in windows of `context` tokens, over its bytes of text."""
    nats = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, context):
            window = ids[start:start + context + 1].to(device)
            logits = model(window[None, :-1]).logits[0]
            nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return nats / math.log(2) / text_bytes


def samples(model, tokenizer, length=200):
    """For each prompt, 200 tokens on the CPU at temperature 1.0 and top-p 0.9 (seed 1)."""
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids])
        torch.manual_seed(1)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, min_new_tokens=length,
                             do_sample=True, temperature=1.0, top_p=0.9, top_k=0, pad_token_id=0)
        yield {"prompt": prompt, "text": tokenizer.decode(out[0, ids.shape[1]:].tolist())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--contexts", type=int, nargs="*", default=[512, 2048, 8192], help="none: samples only")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device).eval()

    texts = list(documents(args.corpus, "heldout"))
    ids, size = [], sum(len(t.encode()) for t in texts)
    for text in texts:
        ids += [tokenizer.token_to_id(END)] + tokenizer.encode(text, add_special_tokens=False).ids
    ids = torch.tensor(ids)
    result = {"transformers": transformers.__version__, "torch": torch.__version__, "heldout_bytes": size,
              "heldout_tokens": len(ids)}
    for context in args.contexts:
        result[f"bits_per_byte_context_{context}"] = round(bits_per_byte(model, ids, size, context, device), 4)
    result["samples"] = list(samples(model.cpu(), tokenizer))
    args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
