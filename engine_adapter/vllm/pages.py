"""vLLM's KV caches as pools of pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from .options import Refusal


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer's pages: axis 0 is the page, the others go from the largest stride to the smallest."""

    pages: torch.Tensor
    axes: tuple[
        int, ...
    ]  # which axes of vLLM's tensor the others are, counted behind the page's cut into smaller blocks

    @property
    def page_bytes(self) -> int:
        return int(self.pages[0].numel() * self.pages.element_size())

    @property
    def sizes(self) -> str:
        return "x".join(str(n) for n in self.pages.shape[1:])

    def raw(self) -> torch.Tensor:
        return self.pages.view(torch.uint8) if self.pages.stride(-1) == 1 else self.pages


def layer_of(name: str, tensor: torch.Tensor, pages: int) -> Layer:
    """Errors: Refusal, where no axis is the pages', or it is not clear which."""
    if pages <= 2:
        raise Refusal(f"the KV cache has {pages} blocks, by which its axes cannot be told apart: give it more memory")
    for axis in range(min(tensor.dim(), 2)):
        if tensor.shape[axis] > 0 and tensor.shape[axis] % pages == 0:
            break
    else:
        raise Refusal(
            f"the KV cache of {name} has shape {tuple(tensor.shape)}, and neither of its first axes has the {pages} blocks"
        )
    # A backend may cut blocks into smaller ones of its own: as many of them are a page.
    cut = tensor.unflatten(axis, (pages, tensor.shape[axis] // pages))
    others = [a for a in range(cut.dim()) if a != axis and cut.shape[a] > 1]
    others.sort(key=lambda a: -cut.stride(a))
    alone = [a for a in range(cut.dim()) if a != axis and cut.shape[a] == 1]
    view = cut.permute(axis, *alone, *others)
    return Layer(view.flatten(0, len(alone)) if alone else view, tuple(others))


def raw_dims(layer: Layer) -> str:
    return " ".join(["block", *(f"axis{i}" for i in range(layer.pages.dim() - 1))])


def number_dims(shape: Sequence[int], blocks: int, latent: bool) -> str:
    """The axes of a cache whose numbers are read as such. Errors: Refusal, where they are not known."""
    if latent and len(shape) == 3 and shape[0] == blocks:
        return "block token dim"
    if not latent and len(shape) == 5:
        if shape[1] == 2 and shape[0] == blocks:
            return "block kv token head dim"
        if shape[0] == 2 and shape[1] == blocks:
            return "kv block token head dim"
    raise Refusal(f"KV caches of shape {tuple(shape)} are not known by their axes: they can be stored raw")
