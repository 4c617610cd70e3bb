"""Where an array's elements lie: NumPy arrays, torch tensors, and whatever exports DLPack.

Nothing is copied and nothing is waited for; no array library is imported.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from . import _kvtier
from ._errors import InvalidError

_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
# Host memory, CUDA memory, host memory pinned by CUDA, memory managed by CUDA.
_DLPACK_HOST, _DLPACK_CUDA = (1, 3), (2, 13)


class Array(NamedTuple):
    """Strides are in bytes. `cuda_device` is None in host memory. `keep` keeps the memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    cuda_device: int | None
    keep: object

    @property
    def span(self) -> int:
        """Bytes from the first element to behind the last."""
        return self.itemsize + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))


def array_of(source: Any, name: str) -> Array:
    """What `source` is, which errors call `name`: InvalidError, where a pool cannot be made of it."""
    if isinstance(source, Array):
        array = source
    elif hasattr(source, "data_ptr") and hasattr(source, "stride"):
        array = _of_torch(source, name)
    elif hasattr(source, "__array_interface__"):
        array = _of_numpy(source, name)
    elif hasattr(source, "__dlpack__"):
        array = _of_dlpack(source, name)
    else:
        raise TypeError(f"{name} is of {type(source).__name__}, and neither a NumPy array, nor a torch tensor, nor "
                        "does it export DLPack")
    if 0 in array.shape:
        raise InvalidError(f"{name} has no elements: its shape is {array.shape}")
    if min(array.strides, default=0) < 0:
        raise InvalidError(f"{name} has a negative stride: {array.strides} bytes")
    return array


def _of_torch(source: Any, name: str) -> Array:
    # Not through DLPack, which knows neither FP8 of every torch nor tensors that require gradients.
    if str(source.layout) != "torch.strided":
        raise InvalidError(f"{name} is {source.layout}; a pool is made of strided tensors")
    if source.device.type not in ("cpu", "cuda"):
        raise InvalidError(f"{name} is on the device {source.device}; a pool is in host or CUDA memory")
    device = (source.device.index or 0) if source.device.type == "cuda" else None
    size = source.element_size()
    return Array(source.data_ptr(), tuple(source.shape), tuple(n * size for n in source.stride()),
                 str(source.dtype).removeprefix("torch."), size, device, source)


def _of_numpy(source: Any, name: str) -> Array:
    interface = source.__array_interface__
    address, read_only = interface["data"]
    if read_only:
        raise InvalidError(f"{name} is read-only, and loads write to a pool")
    # The names of NumPy, and of ml_dtypes for what NumPy has none for (bfloat16).
    return Array(address, tuple(source.shape), tuple(source.strides), str(source.dtype.name), source.itemsize, None, source)


def _of_dlpack(source: Any, name: str) -> Array:
    device_type, device = (int(n) for n in source.__dlpack_device__())
    if device_type not in _DLPACK_HOST + _DLPACK_CUDA:
        raise InvalidError(f"{name} is on DLPack device type {device_type}; a pool is in host or CUDA memory")
    on_cuda = device_type in _DLPACK_CUDA
    # -1: order nothing. Loads and write-backs are ordered by the streams that they are given.
    wanted: dict[str, Any] = {"stream": -1} if on_cuda else {}
    try:
        capsule = source.__dlpack__(max_version=(1, 0), **wanted)
    except TypeError:  # of before DLPack 1.0
        capsule = source.__dlpack__(**wanted)
    address, shape, strides, kind, bits, lanes, _, _, read_only, keep = _kvtier.dlpack_view(capsule)
    if read_only:
        raise InvalidError(f"{name} is read-only, and loads write to a pool")
    if bits * lanes % 8 != 0:
        raise InvalidError(f"{name} has elements of {bits * lanes} bits")
    size = bits * lanes // 8
    if strides is None:
        strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    dtype = _DLPACK_KINDS.get(kind, f"DLPack type {kind} of ") + str(bits) + (f"x{lanes}" if lanes > 1 else "")
    return Array(address, tuple(shape), tuple(n * size for n in strides), dtype, size, device if on_cuda else None, keep)
