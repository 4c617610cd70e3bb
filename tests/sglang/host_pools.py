"""Host pools as SGLang lays them out, small and without SGLang: where their pages lie is read off the arrays."""

import pathlib
import sys

import numpy as np

try:
    import torch
except ImportError:
    torch = None

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "vllm"), str(HERE.parent / "python")]
from parts import part  # noqa: E402

LAYERS, HEADS, DIM = 3, 2, 8
#: The axes of each layout, the outermost first. What is called block and token is one axis in SGLang where the two meet.
LAYOUTS = {
    "layer_first": "kv layer block token head dim",
    "page_first": "kv block token layer head dim",
    "page_first_direct": "kv block layer token head dim",
    "page_head": "kv block head token layer dim",
    "layer_first of MLA": "layer block token dim",
    "page_first of MLA": "block token layer dim",
    "page_first_direct of MLA": "block layer token dim",
}
MEMORY = ["numpy"] + (["torch"] if torch is not None else [])


class HostPool:
    def __init__(self, layout, pages=6, page_size=4, memory="numpy"):
        self.layout = layout.partition(" ")[0]
        self.page_size, self.size = page_size, pages * page_size
        self.layer_num, self.head_num, self.head_dim = LAYERS, HEADS, DIM
        self.dtype = "float16"
        sizes = dict(kv=2, layer=LAYERS, block=pages, token=page_size, head=HEADS, dim=DIM)
        axes = LAYOUTS[layout].split()
        shape = [sizes[axis] for axis in axes]
        if memory == "torch":
            self.kv_buffer = torch.zeros(shape, dtype=torch.float16)
            self.array = self.kv_buffer.numpy()
        else:
            self.kv_buffer = self.array = np.zeros(shape, np.float16)
        self.block_axis = axes.index("block")

    def page(self, number):
        """A view, in the order of its bytes."""
        return np.take(self.array.view(np.uint16), [number], self.block_axis)

    def fill(self, number, seed):
        index = [slice(None)] * self.array.ndim
        index[self.block_axis] = slice(number, number + 1)
        content = np.random.default_rng(seed).integers(0, 1 << 16, self.page(number).shape, np.uint16)
        self.array.view(np.uint16)[tuple(index)] = content

    def get_page_buffer_meta(self, indices):
        pointers, sizes = [], []
        places = np.arange(self.array.size).reshape(self.array.shape)
        for start in indices.tolist()[:: self.page_size]:
            elements = np.take(places, start // self.page_size, self.block_axis).ravel()
            ends = [*(np.flatnonzero(np.diff(elements) != 1) + 1), len(elements)]
            for first, end in zip([0, *ends], ends):
                pointers.append(self.array.ctypes.data + int(elements[first]) * 2)
                sizes.append((end - first) * 2)
        return pointers, sizes


def indices(pages, page_size):
    """The tokens of pages, as SGLang names them."""
    return np.concatenate([np.arange(page * page_size, (page + 1) * page_size) for page in pages] or [np.arange(0)])
