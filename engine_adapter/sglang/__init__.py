"""kvtier in SGLang's hierarchical cache. Start it with

python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache --hicache-mem-layout page_first \\
    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "kvtier",
    "module_path": "kvtier.sglang", "class_name": "KvtierStorage", "interface_v1": 1}'
"""

from .storage import KvtierStorage

__all__ = ["KvtierStorage"]
