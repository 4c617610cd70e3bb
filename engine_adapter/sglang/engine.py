"""What is read of SGLang's process beside what it gives a backend: which model it runs, and how."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import sglang
from sglang.srt import runtime_context

from ..engines.identity import config_facts

# Of SGLang's model namespace, as resolved: what the KV of the same weights may depend on.
_COMPUTED_WITH = (
    "dtype",
    "quantization",
    "quantization_param_path",
    "kv_cache_dtype",
    "json_model_override_args",
    "modelopt_quant",
    "quantize_and_serve",
    "rl_quant_profile",
    "model_impl",
)
_DRAFT = ("speculative_algorithm", "speculative_draft_model_path", "speculative_draft_model_revision")


@dataclasses.dataclass(frozen=True)
class Engine:
    version: str
    model: str = ""  # its name or path
    weights: Any = None  # as engines.weights.revision_of() takes it; None: they cannot be read
    computed_with: dict[str, Any] = dataclasses.field(default_factory=dict)
    unread: str = ""  # why nothing but the version is known


def running_engine() -> Engine:
    """Of this process, which SGLang's scheduler has set up before it makes a backend."""
    version = str(sglang.__version__)
    try:
        model, spec = runtime_context.get_model(), runtime_context.get_spec()
        config = runtime_context.process_model_config()
        return Engine(
            version,
            str(config.model_path),
            types.SimpleNamespace(hf_config=config.hf_config, model=config.model_path, revision=config.revision),
            {
                "config": config_facts(config.hf_config.to_dict()),
                "load_format": "dummy" if model.load_format == "dummy" else "weights",
                "resolved dtype": str(config.dtype),
                "attention": [str(name) for name in runtime_context.attention_backends()],
                **{name: getattr(model, name, None) for name in _COMPUTED_WITH},
                **{name: getattr(spec, name, None) for name in _DRAFT},
            },
        )
    except (AttributeError, RuntimeError, ValueError) as reason:  # of a version that keeps them elsewhere
        return Engine(version, unread=f"{type(reason).__name__}: {reason}")
