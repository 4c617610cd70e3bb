"""Page pools: an engine's KV memory, described once by the names of its axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import _kvtier
from ._arrays import Array, array_of
from ._axes import AXES, Axis, parse, resolve
from ._errors import InvalidError
from ._namespace import LayerShape, Namespace

_NUMBERS = ("float32", "float16", "bfloat16")
# base, bytes, page stride, token stride, head stride, rows, bytes and stride of rows: kvtier::PoolSide.
_Side = tuple[int, int, int, int, int, int, int, int]
Groups = tuple[tuple[str, ...], ...]


class Pool:
    """Pages by number, in arrays that stay the engine's. It keeps them alive, and copies nothing.

    The engine leaves the pages of a load or a write-back alone until that has ended.
    """

    def __init__(self, native: _kvtier.Pool, ns: Namespace, dims: str) -> None:
        self._native = native
        self._ns = ns
        self._dims = dims

    @classmethod
    def from_tensors(cls, ns: Namespace, tensors: Any = None, dims: str = "", *, k: Any = None, v: Any = None,
                     page_tokens: int | None = None) -> Pool:
        """Describes `tensors` (one with all layers, or a sequence of one a layer), or `k` and `v` likewise.

        `dims` names the axes of each, first to last, by their meaning: "layer", "kv" (K is 0, V is 1), "block"
        (the page's number), "token" (within a page), "head" and "dim"; "(head dim)" is one axis in which dim runs
        within head. Strides are the arrays' own. Without "token" a page has one token; without "head" there is one.
        Raw pages may have axes of any other name too, and are kept in the order of `dims`, K before V.

        `page_tokens` is needed where "token" is fused with "block" and a page is not a block. Errors: InvalidError,
        naming tensor and axis.
        """
        if page_tokens is not None and page_tokens < 1:
            raise InvalidError(f"page_tokens is {page_tokens}; it must be at least 1")
        groups = parse(dims)
        builder = _Builder(ns, groups, page_tokens)
        if tensors is not None and k is None and v is None:
            arrays = _arrays(ns, tensors, "tensor", builder.has("layer"))
            layers = [builder.layer(i, *arrays[i]) for i in range(ns.layers)]
        elif tensors is None and k is not None:
            if builder.has("kv"):
                raise InvalidError(f"dims '{dims}' name the axis 'kv', and K and V were given apart")
            ks = _arrays(ns, k, "k", builder.has("layer"))
            vs = _arrays(ns, v, "v", builder.has("layer")) if v is not None else [None] * ns.layers
            layers = [builder.apart(i, ks[i], vs[i]) for i in range(ns.layers)]
        else:
            raise TypeError("give either tensors, or k and, where there are V, v")
        native = _kvtier.Pool(ns=ns._native, dtype=builder.dtype or _NUMBERS[0], pages=builder.pages,
                              page_tokens=builder.page_tokens, layers=layers, cuda_device=builder.cuda_device,
                              arrays=builder.keep)
        return cls(native, ns, dims)

    @property
    def ns(self) -> Namespace:
        return self._ns

    @property
    def pages(self) -> int:
        """How many there are: their numbers go from 0 to this."""
        return self._native.pages

    @property
    def page_tokens(self) -> int:
        return self._native.page_tokens

    @property
    def pages_of_block(self) -> int:
        """How many page numbers name one block, in the order of its tokens."""
        return self._native.pages_of_block

    @property
    def device(self) -> str:
        """"cpu", or "cuda:" and the device's number."""
        return "cpu" if self._native.cuda_device is None else f"cuda:{self._native.cuda_device}"

    def __repr__(self) -> str:
        return (f"<kvtier.Pool '{self._dims}' of {self.pages} pages of {self.page_tokens} tokens on {self.device}, "
                f"{self._ns.layers} layers>")


def _arrays(ns: Namespace, given: Any, kind: str, has_layers: bool) -> list[tuple[str, Array]]:
    """(name, array) of each layer. One array is of all layers, and the same for each."""
    if _is_sequence(given):
        named = [(f"{kind} {i}", array_of(each, f"{kind} {i}")) for i, each in enumerate(given)]
        if has_layers:
            raise InvalidError(f"dims name the axis 'layer', which is for one {kind} of all layers, and a sequence was given")
        if len(named) != ns.layers:
            raise InvalidError(f"{len(named)} {kind}s were given, and the namespace has {ns.layers} layers")
        return named
    if not has_layers and ns.layers != 1:
        raise InvalidError(f"one {kind} was given for {ns.layers} layers, and dims name no axis 'layer'")
    return [(kind, array_of(given, kind))] * ns.layers


def _is_sequence(given: Any) -> bool:
    return isinstance(given, Sequence) or (isinstance(given, Iterable) and not hasattr(given, "shape"))


class _Builder:
    """Layer after layer; what must be the same of all is taken from the first."""

    def __init__(self, ns: Namespace, groups: Groups, page_tokens: int | None) -> None:
        self.ns = ns
        self.groups = groups
        self.names = [name for group in groups for name in group]
        self.wanted_tokens = page_tokens
        self.pages = 0
        self.page_tokens = 0
        self.dtype = ""
        self.cuda_device: int | None = None
        self.keep: list[object] = []
        self.first = ""  # the first tensor's name
        if not self.has("block"):
            raise InvalidError("dims name no axis 'block', along which pages are numbered")
        if any(shape.format != "raw" for shape in self._shapes()):
            for axis in self.names:
                if axis not in AXES:
                    raise InvalidError(f"dims name an axis '{axis}'; there are {', '.join(AXES)}")
            if not self.has("dim"):
                raise InvalidError("dims name no axis 'dim'")

    def has(self, axis: str) -> bool:
        return axis in self.names

    def layer(self, index: int, name: str, array: Array) -> tuple[_Side, _Side | None]:
        """Of a tensor that has K and V along "kv", or K alone."""
        shape = self.ns.layer_shape(index)
        numbers = shape.format != "raw"
        if not self.has("kv"):
            if numbers and shape.head_dim_v != 0:
                raise InvalidError(f"{name}: dims name no axis 'kv', and the namespace has V (head_dim_v {shape.head_dim_v})")
            return self._side(index, name, array, shape.head_dim_k, 0), None
        if numbers and shape.head_dim_v != shape.head_dim_k:
            raise InvalidError(f"{name}: along the axis 'kv' K and V have one size, and the namespace has head_dim_k "
                               f"{shape.head_dim_k} and head_dim_v {shape.head_dim_v}: give k and v apart")
        k, v = (self._side(index, name, array, shape.head_dim_k, kv) for kv in (0, 1))
        return k, v

    def apart(self, index: int, k: tuple[str, Array], v: tuple[str, Array] | None) -> tuple[_Side, _Side | None]:
        shape = self.ns.layer_shape(index)
        if shape.format != "raw" and (v is None) != (shape.head_dim_v == 0):
            raise InvalidError(f"{'no v was' if v is None else 'v was'} given, and the namespace's head_dim_v is {shape.head_dim_v}")
        return (self._side(index, *k, shape.head_dim_k, 0), None if v is None else self._side(index, *v, shape.head_dim_v, 0))

    def _shapes(self) -> Iterable[LayerShape]:
        return (self.ns.layer_shape(i) for i in range(self.ns.layers))

    def _side(self, index: int, name: str, array: Array, dim: int, kv: int) -> _Side:
        shape = self.ns.layer_shape(index)
        axes = resolve(array, name, self.groups, self._sizes(shape, dim))
        base = array.address
        for axis, at in (("layer", index), ("kv", kv)):
            if axis in axes:
                base += at * axes.pop(axis).stride
        pages = axes.pop("block")
        raw = shape.format == "raw"
        self._agree(name, array, pages.size, self._tokens_of_page(axes, raw), raw)
        inner = _raw_side(name, axes, array.itemsize) if raw else _number_side(name, axes, array, shape)
        bytes_to_end = array.itemsize + sum((axis.size - 1) * axis.stride for axis in (pages, *axes.values()))
        return (base, bytes_to_end, pages.stride, *inner)

    def _sizes(self, shape: LayerShape, dim: int) -> dict[str, int]:
        sizes = {"kv": 2, "layer": self.ns.layers}
        if self.wanted_tokens is not None:
            sizes["token"] = self.wanted_tokens
        elif any("token" in group and "block" in group for group in self.groups):
            sizes["token"] = self.ns.block_tokens
        for axis, size in (("head", shape.kv_heads), ("dim", dim)):
            # Raw pages may have what they like there, unless it is fused with what must be told apart.
            if shape.format != "raw" or (size != 0 and any(axis in group and len(group) > 1 for group in self.groups)):
                sizes[axis] = size
        return sizes

    def _tokens_of_page(self, axes: dict[str, Axis], raw: bool) -> int:
        if "token" in axes:
            return axes["token"].size
        return self.wanted_tokens or (self.ns.block_tokens if raw else 1)

    def _agree(self, name: str, array: Array, pages: int, page_tokens: int, raw: bool) -> None:
        if not raw and array.dtype not in _NUMBERS:
            raise InvalidError(f"{name} is of {array.dtype}; pages of numbers are {', '.join(_NUMBERS)} (format raw takes any)")
        dtype = self.dtype if raw else array.dtype
        if not self.first:
            self.first, self.pages, self.page_tokens, self.cuda_device = name, pages, page_tokens, array.cuda_device
        self.dtype = self.dtype or dtype
        for what, one, other in (("pages along 'block'", pages, self.pages), ("tokens a page", page_tokens, self.page_tokens),
                                 ("as type", dtype, self.dtype), ("as CUDA device", array.cuda_device, self.cuda_device)):
            if one != other:
                raise InvalidError(f"{name} has {one} {what}, and {self.first} has {other}")
        if all(array.keep is not kept for kept in self.keep):
            self.keep.append(array.keep)


def _number_side(name: str, axes: dict[str, Axis], array: Array, shape: LayerShape) -> tuple[int, int, int, int, int]:
    dim, head = axes["dim"], axes.get("head", Axis(1, 0))
    if head.size != shape.kv_heads:
        raise InvalidError(f"{name}: dims name no axis 'head', and the namespace has {shape.kv_heads} kv_heads")
    if dim.size > 1 and dim.stride != array.itemsize:
        raise InvalidError(f"{name}: axis 'dim' has a stride of {dim.stride} bytes; its elements of {array.itemsize} bytes "
                           "must lie side by side")
    token = axes.get("token", Axis(1, 0))
    return (token.stride, head.stride, 0, 0, 0)


def _raw_side(name: str, axes: dict[str, Axis], itemsize: int) -> tuple[int, int, int, int, int]:
    """Rows of one stride, out of the axes of a page from the innermost out."""
    row_bytes, rows, row_stride = itemsize, 1, 0
    for axis, (size, stride) in reversed(axes.items()):
        if size == 1:
            continue
        if rows == 1 and stride == row_bytes:
            row_bytes *= size
        elif rows == 1:
            rows, row_stride = size, stride
        elif stride == rows * row_stride:
            rows *= size
        else:
            raise InvalidError(f"{name}: a raw page is rows of one stride, and its axis '{axis}' goes on after {stride} bytes, "
                               f"behind {rows} rows of {row_bytes} bytes that are {row_stride} apart")
    return (0, 0, rows, row_bytes, row_stride)
