"""The names of an array's axes: "kv block token head dim", with axes that lie fused in parentheses."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from ._arrays import Array
from ._errors import InvalidError

AXES = ("layer", "kv", "block", "token", "head", "dim")


class Axis(NamedTuple):
    size: int
    stride: int  # bytes


def parse(dims: str) -> tuple[tuple[str, ...], ...]:
    """The axes of `dims`, each the names that are fused in it. "block (kv head) dim" -> (block,), (kv, head), (dim,)."""
    if not re.fullmatch(r"\s*(?:(?:\w+|\(\s*\w+(?:\s+\w+)*\s*\))(?:\s+|(?=[()])|$))+", dims):
        raise InvalidError(f"dims '{dims}' are no names of axes, such as 'kv block token head dim' or 'block (kv head) dim'")
    groups = tuple(tuple(group.strip("()").split()) for group in re.findall(r"\([^()]*\)|\w+", dims))
    names = [name for group in groups for name in group]
    for name in names:
        if names.count(name) > 1:
            raise InvalidError(f"dims '{dims}' name the axis '{name}' twice")
    return groups


def resolve(array: Array, name: str, groups: tuple[tuple[str, ...], ...], sizes: Mapping[str, int]) -> dict[str, Axis]:
    """Each axis of `array` in the order of `groups`. `sizes` has those of axes that are known beforehand."""
    if len(array.shape) != len(groups):
        shown = " ".join(group[0] if len(group) == 1 else f"({' '.join(group)})" for group in groups)
        raise InvalidError(f"{name} has {len(array.shape)} axes, shape {array.shape}, and dims '{shown}' name {len(groups)}")
    axes: dict[str, Axis] = {}
    for group, size, stride in zip(groups, array.shape, array.strides):
        for axis, each in zip(group, _factors(name, group, size, sizes)):
            size //= each
            axes[axis] = Axis(each, stride * size)
    return axes


def _factors(name: str, group: tuple[str, ...], size: int, sizes: Mapping[str, int]) -> list[int]:
    known = {axis: sizes[axis] for axis in group if axis in sizes}
    unknown = [axis for axis in group if axis not in sizes]
    shown = group[0] if len(group) == 1 else f"({' '.join(group)})"
    product = math.prod(known.values())
    expected = " x ".join(f"{axis} {n}" for axis, n in known.items())
    if len(unknown) > 1:
        raise InvalidError(f"{name}: the sizes of {' and '.join(unknown)} in axis '{shown}' of {size} are not known")
    if not unknown and product != size:
        raise InvalidError(f"{name}: axis '{shown}' has {size}, and the namespace says {expected}")
    if unknown and (product == 0 or size % product != 0):
        raise InvalidError(f"{name}: axis '{shown}' has {size}, which is no multiple of {expected}")
    return [known.get(axis, size // product if product else 0) for axis in group]
