#!/usr/bin/env python3
"""Golden logits by the transformers library: float32 arithmetic on the CPU, weights widened to float32.

    golden.py bundled --model DIR --text FILE --out DIR    two prompts for the bundled model
    golden.py tiny --out DIR                               tiny random checkpoints with their logits
    golden.py families --out DIR                           one of each family, and what it answers
    golden.py check --model DIR --golden FILE              the largest difference from a stored file

A golden file is a safetensors file: `tokens` I32 [n] and `logits` F32 [m, vocab],
the logits of the last m positions; and for the model families `greedy` I32 [256], the likeliest
tokens after `tokens`, one after another.
"""

import argparse
import copy
import json
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM


def logits_of(folder, tokens, last, attention="eager"):
    """Logits of the last positions, in float32 on the CPU."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    with torch.no_grad():
        return model(tokens[None].long(), logits_to_keep=last).logits[0]


def greedy_of(folder, tokens, count):
    """The likeliest `count` tokens after `tokens`, and how near the two likeliest came."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    answer, nearest, fed, cache = [], float("inf"), tokens[None].long(), None
    with torch.no_grad():
        for _ in range(count):
            out = model(fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            best = out.logits[0, -1].topk(2)
            nearest = min(nearest, (best.values[0] - best.values[1]).item())
            answer.append(best.indices[0].item())
            fed, cache = best.indices[:1][None], out.past_key_values
    print(folder, "greedy: nearest two logits", nearest, "distinct tokens", len(set(answer)))
    return torch.tensor(answer, dtype=torch.int32), nearest


def write_golden(folder, tokens, last, path, greedy=None):
    tokens = torch.as_tensor(tokens, dtype=torch.int32)
    logits = logits_of(folder, tokens, last)
    other = logits_of(folder, tokens, last, "sdpa")
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"tokens": tokens, "logits": logits.contiguous()}
    if greedy is not None:
        tensors["greedy"] = greedy
    save_file(tensors, str(path), metadata={
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "arithmetic": "float32, cpu, eager attention", "positions": f"last {last} of {len(tokens)}"})
    print(path, tuple(logits.shape), "std %.3f" % logits.std(), "eager to sdpa %.2e" % (logits - other).abs().max())


def bundled(args):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    ids = tokenizer.encode(args.text.read_text(encoding="utf-8"), add_special_tokens=False).ids
    assert len(ids) >= 4099, "the text is too short"
    write_golden(args.model, ids[:211], 48, args.out / "docs-4m-short.safetensors")
    write_golden(args.model, ids[:4099], 4, args.out / "docs-4m-long.safetensors")


TINY = {
    "llama3-rope": dict(seed=11, dtype="bfloat16", std=0.1, hidden_size=96, intermediate_size=160,
                        num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
                        tie_word_embeddings=False, rope_theta=10000.0, max_position_embeddings=256,
                        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                      "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    "mha": dict(seed=12, dtype="float16", std=0.1, hidden_size=96, intermediate_size=192, num_hidden_layers=2,
                num_attention_heads=6, num_key_value_heads=6, head_dim=16, tie_word_embeddings=False,
                rope_theta=10000.0, max_position_embeddings=256, rope_scaling=None),
    "yarn": dict(seed=14, dtype="float32", std=0.1, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
                 rope_theta=10000.0, max_position_embeddings=256,
                 rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    "mqa": dict(seed=13, dtype="float32", std=0.1, hidden_size=64, intermediate_size=120, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=1, head_dim=24, tie_word_embeddings=True,
                rope_theta=500000.0, max_position_embeddings=256, rope_scaling=None),
}


LATENT = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False,
              attention_bias=False, first_k_dense_replace=2, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
              head_dim=8, v_head_dim=16)
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 8, "beta_slow": 1}

# One of each family that the GPU's attention takes (head_dim 64), with 256 greedy tokens.
FAMILIES = {
    "llama": dict(architecture="LlamaForCausalLM", model_type="llama", seed=21, hidden_size=128,
                  num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=False,
                  attention_bias=False, mlp_bias=False),
    "qwen2.5": dict(architecture="Qwen2ForCausalLM", model_type="qwen2", seed=22, hidden_size=128,
                    num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
                    use_sliding_window=False, sliding_window=512, max_window_layers=2),
    "qwen3": dict(architecture="Qwen3ForCausalLM", model_type="qwen3", seed=23, hidden_size=96,
                  num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
                  attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=2),
    # A window that is no multiple of a block and far shorter than the text.
    "mistral": dict(architecture="MistralForCausalLM", model_type="mistral", seed=24, hidden_size=96,
                    num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False, sliding_window=27,
                    dtype="float16", shards=3),
    "qwen2.5-window": dict(architecture="Qwen2ForCausalLM", model_type="qwen2", seed=25, hidden_size=64,
                           num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
                           use_sliding_window=True, sliding_window=40, max_window_layers=1),
    # Latent attention, all layers dense: queries at once or through a latent of their own, rotated by pairs or by halves,
    # positions plain or with YaRN; the latents' norms have an epsilon that is not rms_norm_eps.
    "deepseek-v2": dict(LATENT, architecture="DeepseekV2ForCausalLM", model_type="deepseek_v2", seed=26,
                        rms_norm_eps=1e-2, q_lora_rank=None, kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=16,
                        head_dim=16, v_head_dim=20, mlp_bias=True),
    "deepseek-v2-yarn": dict(LATENT, architecture="DeepseekV2ForCausalLM", model_type="deepseek_v2", seed=27,
                             q_lora_rank=36, rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=0.4)),
    "deepseek-v3": dict(LATENT, architecture="DeepseekV3ForCausalLM", model_type="deepseek_v3", seed=28,
                        q_lora_rank=40, rope_interleave=True,
                        rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
    "deepseek-v3-halves": dict(LATENT, architecture="DeepseekV3ForCausalLM", model_type="deepseek_v3", seed=29,
                               tie_word_embeddings=True, q_lora_rank=None, v_head_dim=24, rope_interleave=False,
                               rope_scaling=YARN),
}


def random_weights(config, seed, std, dtype, tied):
    """Parameters of the shapes that `config` asks for, from a seed; norms around 1, all else around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    weights = {}
    for key, p in model.named_parameters():
        base = torch.randn(p.shape, generator=generator) * std
        weights[key] = (1 + base if key.endswith("norm.weight") else base).to(dtype).contiguous()
    if tied:
        weights.pop("lm_head.weight", None)
    return weights, generator


def write_checkpoint(folder, config, weights, shards=1):
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    else:
        keys, places = sorted(weights), {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            part = {key: weights[key] for key in keys[shard::shards]}
            save_file(part, str(folder / file), metadata={"format": "pt"})
            places.update({key: file for key in part})
        size = sum(w.numel() * w.element_size() for w in weights.values())
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def tiny(args):
    for name, options in TINY.items():
        if args.only and name not in args.only:
            continue
        options, folder = dict(options), args.out / name
        seed, dtype, std = options.pop("seed"), options.pop("dtype"), options.pop("std")
        classic = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300,
                   "hidden_act": "silu", "rms_norm_eps": 1e-05, "attention_bias": False, "attention_dropout": 0.0,
                   "mlp_bias": False, "initializer_range": std, "bos_token_id": 0, "eos_token_id": 0,
                   "use_cache": True, **options, "torch_dtype": dtype}
        weights, generator = random_weights(classic, seed, std, getattr(torch, dtype), options["tie_word_embeddings"])
        write_checkpoint(folder, classic, weights)
        tokens = torch.randint(300, (101,), generator=generator, dtype=torch.int32)
        write_golden(folder, tokens, 101, folder / "golden.safetensors")
        if name == "llama3-rope":
            both_spellings(folder, classic, weights, tokens)


def families(args):
    for name, options in FAMILIES.items():
        if args.only and name not in args.only:
            continue
        options, folder = dict(options), args.out / name
        seed, architecture = options.pop("seed"), options.pop("architecture")
        dtype, shards = options.pop("dtype", "bfloat16"), options.pop("shards", 1)
        config = {"architectures": [architecture], "vocab_size": 300, "hidden_act": "silu", "rms_norm_eps": 1e-06,
                  "intermediate_size": 160, "num_hidden_layers": 2, "head_dim": 64, "rope_theta": 100000.0,
                  "max_position_embeddings": 1024, "attention_dropout": 0.0, "initializer_range": 0.15,
                  "bos_token_id": 0, "eos_token_id": None, "use_cache": True, **options, "torch_dtype": dtype}
        weights, generator = random_weights(config, seed, 0.15, getattr(torch, dtype), options["tie_word_embeddings"])
        write_checkpoint(folder, config, weights, shards)
        nearest = 0
        while nearest < 1e-3:  # else rounding could decide
            tokens = torch.randint(300, (77,), generator=generator, dtype=torch.int32)
            greedy, nearest = greedy_of(folder, tokens, 256)
        write_golden(folder, tokens, 77, folder / "golden.safetensors", greedy)


def both_spellings(folder, classic, weights, tokens):
    """Checks that the newer spelling (rope_parameters, dtype) gives the logits of the classic one."""
    import tempfile

    newer = {k: v for k, v in classic.items() if k not in ("rope_scaling", "rope_theta", "torch_dtype")}
    newer["rope_parameters"] = dict(classic["rope_scaling"], rope_theta=classic["rope_theta"])
    newer["dtype"] = classic["torch_dtype"]
    plain = dict(classic, rope_scaling=None)
    (folder / "config-v5.json").write_text(json.dumps(newer, indent=2) + "\n")
    found = []
    for config in (classic, newer, plain):
        with tempfile.TemporaryDirectory() as other:
            (Path(other) / "config.json").write_text(json.dumps(config))
            save_file(weights, other + "/model.safetensors", metadata={"format": "pt"})
            found.append(logits_of(other, tokens, len(tokens)))
    assert torch.equal(found[0], found[1]), "the spellings disagree"
    assert (found[0] - found[2]).abs().max() > 1e-2, "the scaling has no effect"
    print("both spellings agree; without scaling the logits differ by %.3f" % (found[0] - found[2]).abs().max())


def check(args):
    with safe_open(args.golden, "pt") as file:
        tokens, logits = file.get_tensor("tokens"), file.get_tensor("logits")
    again = logits_of(args.model, tokens, len(logits))
    difference = (again - logits).abs().max().item()
    print(args.golden, "largest difference", difference)
    assert difference < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["bundled", "tiny", "families", "check"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", help="these of the tiny ones or the families")
    args = parser.parse_args()
    {"bundled": bundled, "tiny": tiny, "families": families, "check": check}[args.what](args)


if __name__ == "__main__":
    main()
