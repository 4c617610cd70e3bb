"""SGLang's own host pools and cache controller of one rank on the CPU, driven as SGLang's scheduler drives them."""

import queue
from array import array

import torch
from sglang.srt.mem_cache import device_pool_info as device
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

LAYERS, HEADS, DIM, PAGE = 3, 2, 16, 4
WAIT = 60.0
CPU = torch.device("cpu")


def mha_pool(layout, pages, dtype=torch.bfloat16):
    k, v = ([torch.zeros(PAGE, HEADS, DIM, dtype=dtype) for _ in range(LAYERS)] for _ in range(2))
    buffers = device.KVBuffers(
        k=tuple(k), v=tuple(v), k_data_ptrs=_pointers(k), v_data_ptrs=_pointers(v), layout=device.KVBufferLayout.NHD
    )
    info = device.MHABufferInfo(
        buffers=buffers, page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=dtype, device=CPU
    )
    return MHATokenToKVPoolHost(
        info, 0, 0, PAGE, layout, pin_memory=False, device_capacity_tokens=PAGE, start_layer=0, end_layer=LAYERS,
        host_token_capacity=pages * PAGE,
    )


def mla_pool(layout, pages, dtype=torch.bfloat16):
    rows = [torch.zeros(PAGE, 1, DIM + 8, dtype=dtype) for _ in range(LAYERS)]
    info = device.MLABufferInfo(
        buffers=tuple(rows), data_ptrs=_pointers(rows), layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS,
        page_size=PAGE, kv_lora_rank=DIM, qk_rope_head_dim=8, kv_cache_dim=DIM + 8, dtype=dtype, device=CPU,
    )
    return MLATokenToKVPoolHost(
        info, 0, 0, PAGE, layout, pin_memory=False, device_capacity_tokens=PAGE, start_layer=0, end_layer=LAYERS,
        target_layer_num=LAYERS, host_token_capacity=pages * PAGE,
    )


def mamba_pool(layout, states):
    info = device.MambaStateBufferInfo(
        temporal=torch.zeros(2, states, 4, 8), conv=(torch.zeros(2, states, 6, 3, dtype=torch.bfloat16),)
    )
    return MambaPoolHost(info, 1.0, 0, device_capacity=states, pin_memory=False, layout=layout)


def _pointers(tensors):
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


class _DevicePool:
    device, layer_num = "cpu", LAYERS

    def register_layer_transfer_counter(self, counter):
        pass


class _DevicePoolOfMLA(_DevicePool, MLATokenToKVPool):
    def __init__(self):
        pass  # nothing of a device: its class says what KV is


class _Allocator:
    def __init__(self, pool):
        self.pool = pool

    def get_kvcache(self):
        return self.pool


class Engine:
    """One rank. `extra` is what the storage backend is configured with."""

    def __init__(self, extra, pool, beside=None, *, tp_rank=0, tp_size=1, pp_rank=0, pp_size=1,
                 tp_group=None, metrics=False):
        self.pool = pool
        entries = [PoolEntry(PoolName.KV, pool, None, lambda layer: layer, is_primary_index_anchor=True)]
        entries += [PoolEntry(name, each, None, lambda layer: layer) for name, each in (beside or {}).items()]
        mla = isinstance(pool, MLATokenToKVPoolHost)
        parallel = dict(tp_rank=tp_rank, tp_size=tp_size, pp_rank=pp_rank, pp_size=pp_size, attn_dcp_size=1, attn_dcp_rank=0)
        with get_parallel().override(**parallel):
            self.controller = HybridCacheController(
                token_to_kv_pool_allocator=_Allocator(_DevicePoolOfMLA() if mla else _DevicePool()),
                mem_pool_host=HostPoolGroup(entries), page_size=PAGE, tp_group=tp_group, load_cache_event=None,
                io_backend="direct", storage_backend="dynamic", prefetch_threshold=PAGE, model_name="org/served",
                storage_backend_extra_config={
                    "backend_name": "kvtier", "module_path": "kvtier.sglang", "class_name": "KvtierStorage", **extra
                },
                enable_storage_metrics=metrics,
            )
        self.storage = self.controller.storage_backend

    def hashes(self, tokens, prior=None, **names):
        return get_storage_hash_str(RadixKey(array("q", tokens), **names), prior, page_size=PAGE)

    def page(self, index):
        """The bytes of the page that begins at a host index, as SGLang reads them."""
        return self.pool.get_data_page(int(index)).view(torch.uint8).clone()

    def pages(self, indices):
        return [self.page(index) for index in indices[::PAGE]]

    def fill(self, indices, seed):
        """Random bytes in SGLang's own order of a page."""
        random = torch.Generator().manual_seed(seed)
        for index in indices[::PAGE]:
            flat = self.pool.get_dummy_flat_data_page()
            bytes_of = torch.randint(0, 256, (flat.numel() * flat.element_size(),), dtype=torch.uint8, generator=random)
            self.pool.set_from_flat_data_page(int(index), bytes_of.view(flat.dtype))

    def back_up(self, indices, tokens, hashes, prefix_keys=None, beside=None):
        """What a node of the tree does that is written through. How many of its tokens the controller calls stored."""
        self.controller.write_storage(indices, tokens, hashes, prefix_keys, extra_pools=beside)
        return self.controller.ack_backup_queue.get(timeout=WAIT).completed_tokens

    def prefetch(self, tokens, last_hash=None, prefix_keys=None, beside=None, **names):
        """What a request does: tokens that were found, tokens that came, and where they are."""
        handle, key = CacheRequestHandle("request", 0), RadixKey(array("q", tokens), **names)
        operation = self.controller.prefetch(handle, key, last_hash, prefix_keys, extra_pools=beside)
        assert self.controller.prefetch_hit_queue.get(timeout=WAIT) is operation
        found = operation.storage_hit_count
        operation.host_indices = self.controller.mem_pool_host.alloc(found)
        self.controller.prefetch_buffer.put(operation)
        came, beside_came = 0, {}
        while True:
            ack = self.controller.ack_prefetch_queue.get(timeout=WAIT)
            came = ack.completed_tokens if ack.completed_tokens is not None else came
            beside_came.update(ack.pool_hits or {})
            if ack.completed_req:
                self.beside_came = beside_came
                return found, came, operation.host_indices

    def close(self):
        self.controller.detach_storage_backend()
        try:
            while True:
                self.controller.ack_prefetch_queue.get_nowait()
        except queue.Empty:
            pass


__all__ = ["Engine", "PoolName", "PoolTransfer", "mamba_pool", "mha_pool", "mla_pool"]
