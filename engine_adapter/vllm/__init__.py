"""kvtier in vLLM. Start it with

vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.vllm",
    "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'
"""

from .connector import KvtierConnector

__all__ = ["KvtierConnector"]
