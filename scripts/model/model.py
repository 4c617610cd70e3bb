"""A Llama decoder for training, with the parameter names of Hugging Face's LlamaForCausalLM."""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": True,
    "torch_dtype": "bfloat16",
}


def rope_tables(config, length, device):
    """cos and sin of the rotary angles, each [length, head_dim]."""
    half = torch.arange(0, config["head_dim"], 2, device=device, dtype=torch.float32)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32),
                         config["rope_theta"] ** (-half / config["head_dim"]))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                           is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])


class Llama(nn.Module):
    """forward(tokens [b, t + 1]) gives the mean cross-entropy of predicting each next token."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        depth = config["num_hidden_layers"]
        for name, p in self.named_parameters():
            if p.dim() == 2:
                out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 if "embed" in name else
                                p.shape[1] ** -0.5 / ((2 * depth) ** 0.5 if out else 1.0))

    def forward(self, tokens, cos, sin):
        x = self.model.embed_tokens(tokens[:, :-1])
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
