#!/usr/bin/env python3
"""A bundled model in llama.cpp's form: gguf_model.py MODEL_DIR FILE. Its tokens are numbers: it gets no vocabulary."""
import json
import pathlib
import sys

import gguf
import numpy

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def tensors(file):
    """Of a safetensors file: a length, a table in JSON, the numbers."""
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        numbers = data[begin + first:begin + end]
        if entry["dtype"] == "BF16":
            wide = numpy.frombuffer(numbers, numpy.uint16).astype(numpy.uint32) << 16
            yield name, wide.view(numpy.float32).reshape(entry["shape"])
        else:
            assert entry["dtype"] == "F32", entry["dtype"]
            yield name, numpy.frombuffer(numbers, numpy.float32).reshape(entry["shape"])


def neighbours(weights, heads):
    """llama.cpp turns pairs of neighbours where the Hugging Face form turns halves of a head."""
    rows = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return numpy.ascontiguousarray(rows.swapaxes(1, 2).reshape(weights.shape))


def main(folder, out):
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, weights in tensors(folder / "model.safetensors"):
        short = name.removeprefix("model.").removesuffix(".weight")
        if short == "embed_tokens":
            to = "token_embd"
        elif short == "norm":
            to = "output_norm"
        elif short == "lm_head":
            to = "output"
        else:
            _, layer, part = short.split(".", 2)
            to = f"blk.{layer}.{NAMES[part]}"
            if NAMES[part] in heads:
                weights = neighbours(weights, heads[NAMES[part]])
        writer.add_tensor(f"{to}.weight", numpy.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
