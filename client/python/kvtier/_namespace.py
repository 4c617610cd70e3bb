"""What must be equal for the KV of two engines to be interchangeable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

from . import _kvtier

StorageFormat = Literal["fp8_e4m3", "fp8_e5m2", "bf16", "f32", "raw", "int8", "int4"]
_Shape = tuple[int, int, int, str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What one layer keeps of a block, where layers differ."""

    kv_heads: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0  #: 0: K alone, as latent attention has it
    format: StorageFormat = "fp8_e4m3"
    raw_bytes: int = 0  #: format raw: bytes of a block

    def _packed(self) -> _Shape:
        return (self.kv_heads, self.head_dim_k, self.head_dim_v, self.format, self.raw_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Namespace:
    """A namespace. It is checked when it is made: InvalidError names the field, its value and its range.

    Where `layer_shapes` is given, `layers`, `kv_heads`, the head sizes, `format` and `raw_bytes` follow from it.
    """

    model: str  #: name and revision of the weights
    layers: int = 0  #: layers held by this rank
    kv_heads: int = 0  #: KV heads held by this rank
    head_dim_k: int = 0
    head_dim_v: int = 0  #: 0: K alone, as latent attention has it
    block_tokens: int = 16
    format: StorageFormat = "fp8_e4m3"
    adapter: str = ""  #: LoRA name and version
    tenant: str = dataclasses.field(default="", repr=False)  #: salt: a secret
    rank: int = 0
    ranks: int = 1  #: 0: every rank holds the same KV
    positions: str = ""  #: position scheme
    raw_bytes: int = 0  #: format raw: bytes of one block in one layer
    page_layout: str = ""  #: what the bytes of raw pages mean
    extra_bytes_max: int = 0  #: most extra bytes that a block's key covers (Prefix.cover())
    digest_bytes: int = 0  #: 0: blocks are named by tokens; else by digests of so many bytes
    layer_shapes: Sequence[LayerShape] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer_shapes", tuple(self.layer_shapes))
        if self.layer_shapes:
            first = self.layer_shapes[0]
            for field, value in dataclasses.asdict(first).items():
                object.__setattr__(self, field, value)
            object.__setattr__(self, "layers", len(self.layer_shapes))
        self._native  # noqa: B018 - checks it

    def layer_shape(self, layer: int) -> LayerShape:
        """What layer `layer` keeps of a block."""
        if self.layer_shapes:
            return self.layer_shapes[layer]
        if not 0 <= layer < self.layers:
            raise IndexError(f"there is no layer {layer}")
        return LayerShape(kv_heads=self.kv_heads, head_dim_k=self.head_dim_k, head_dim_v=self.head_dim_v,
                          format=self.format, raw_bytes=self.raw_bytes)

    @property
    def id(self) -> bytes:
        """The 16 bytes that name it: XXH3-128 of encode()."""
        return self._native.id

    @property
    def record_bytes(self) -> int:
        """Bytes that one block takes in every tier."""
        return self._native.record_bytes

    def encode(self) -> bytes:
        """The canonical encoding (docs/format.md)."""
        return self._native.encode()

    @functools.cached_property
    def _native(self) -> _kvtier.Namespace:
        shape = LayerShape(kv_heads=self.kv_heads, head_dim_k=self.head_dim_k, head_dim_v=self.head_dim_v,
                           format=self.format, raw_bytes=self.raw_bytes)
        return _kvtier.Namespace(
            model=self.model, adapter=self.adapter, tenant=self.tenant, positions=self.positions, layers=self.layers,
            shape=shape._packed(), block_tokens=self.block_tokens, rank=self.rank, ranks=self.ranks,
            page_layout=self.page_layout, extra_bytes_max=self.extra_bytes_max, digest_bytes=self.digest_bytes,
            layer_shapes=[layer._packed() for layer in self.layer_shapes])
