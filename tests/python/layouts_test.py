"""Every layout that Pool.from_tensors() takes: stored in it and loaded in another, and the other way round."""

import array

import numpy as np

import kvtier
import pages
from pages import Layout, namespace, random_kv

BLOCKS = 5
# What each keeps is the same; how it lies is not.
LAYOUTS = {
    "K and V planes, token-major": dict(dims="kv block token head dim"),
    "K and V planes, head-major": dict(dims="kv block head token dim"),
    "named token-major, lying head-major": dict(dims="kv block token head dim", order="kv block head token dim"),
    "K and V side by side in a page": dict(dims="block kv token head dim"),
    "K and V by token": dict(dims="block token kv head dim"),
    "all layers in one tensor": dict(dims="layer kv block token head dim"),
    "all layers in one page": dict(dims="block layer kv token head dim"),
    "named by layer, lying by page": dict(dims="layer kv block head token dim", order="block layer kv head token dim"),
    "K and V apart": dict(dims="block token head dim", apart=True),
    "K and V apart, all layers in one tensor": dict(dims="layer block head token dim", apart=True),
    "heads fused with their numbers": dict(dims="kv block token (head dim)"),
    "K, V and heads fused": dict(dims="block token (kv head) dim"),
    "tokens numbered through": dict(dims="(block token) head dim", apart=True, page_tokens=4),
    "tokens numbered through, pages of two": dict(dims="kv (block token) head dim", page_tokens=2),
    "pages of two tokens": dict(dims="kv block token head dim", page_tokens=2),
    "pages of one token": dict(dims="kv block head dim", page_tokens=1),
    "half precision": dict(dims="kv block token head dim", dtype=np.float16),
    "rows with room behind them": dict(dims="kv block token head dim", padding=3),
}


def numbers(layout, blocks=BLOCKS, seed=3):
    """Pages of `blocks` blocks, scattered."""
    order = np.random.default_rng(seed).permutation(layout.pages)
    return order[:blocks * layout.pool.pages_of_block].astype(np.uint32)


def layout_of(ns, fields, blocks=BLOCKS):
    per_block = ns.block_tokens // fields.get("page_tokens", ns.block_tokens)
    return Layout(ns, pages=(2 * blocks + 1) * per_block, **fields)


class LayoutsTest(pages.CacheTest):
    def check(self, cache, prefix, stored, loaded, blocks=BLOCKS):
        ns = cache.ns
        kv = random_kv(ns, blocks)
        source, target = layout_of(ns, stored), layout_of(ns, loaded)
        source.fill(kv, numbers(source, seed=5))
        self.assertEqual(self.store(cache, prefix, source.pool, numbers(source, seed=5)), blocks)
        untouched = [array.copy() for array in source.arrays]
        self.assertEqual(self.load(cache, prefix, target.pool, numbers(target)), blocks)
        for got, wanted in zip(target.read(kv, numbers(target)), kv, strict=True):
            for side, expected in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(side, expected)
        for before, after in zip(untouched, source.arrays, strict=True):
            np.testing.assert_array_equal(before, after)
        others = [page for page in range(target.pages) if page not in numbers(target)]
        for page in target.views(others):
            self.assertFalse(page.any(), "pages that no load names stay as they were")

    def test_what_one_layout_stores_every_other_loads(self):
        plain = LAYOUTS["K and V planes, token-major"]
        for name, fields in LAYOUTS.items():
            for first, (stored, loaded) in enumerate(((plain, fields), (fields, plain))):
                with self.subTest(name, stored=bool(first)):
                    ns = namespace(model=f"{name} {first}")
                    cache = self.open(ns)
                    self.check(cache, cache.prefix(range(BLOCKS * 4 + 1)), stored, loaded)

    def test_latent_pages_have_no_v_and_one_head(self):
        ns = namespace(model="latent", kv_heads=1, head_dim_k=24, head_dim_v=0)
        cache = self.open(ns)
        self.check(cache, cache.prefix(range(BLOCKS * 4 + 1)), dict(dims="block token dim"), dict(dims="layer block token head dim"))

    def test_layers_may_differ(self):
        shapes = [kvtier.LayerShape(kv_heads=2, head_dim_k=8, head_dim_v=8, format="f32"),
                  kvtier.LayerShape(kv_heads=1, head_dim_k=16, head_dim_v=16, format="f32"),
                  kvtier.LayerShape(kv_heads=4, head_dim_k=8, head_dim_v=8, format="bf16")]
        ns = kvtier.Namespace(model="differ", block_tokens=4, layer_shapes=shapes)
        self.assertEqual((ns.layers, ns.kv_heads, ns.format), (3, 2, "f32"))
        cache = self.open(ns)
        self.check(cache, cache.prefix(range(BLOCKS * 4 + 1)), dict(dims="kv block token head dim"),
                   dict(dims="block head token dim", apart=True))

    def test_v_may_be_of_another_size_than_k(self):
        ns = namespace(model="sizes", head_dim_k=12, head_dim_v=8)
        cache = self.open(ns)
        self.check(cache, cache.prefix(range(BLOCKS * 4 + 1)), dict(dims="block token head dim", apart=True),
                   dict(dims="block head token dim", apart=True))

    def test_raw_pages_come_back_bit_for_bit(self):
        ns = namespace(model="raw", format="raw", raw_bytes=2 * 4 * 2 * 9, page_layout="fp8 e4m3, scale behind each head")
        cache = self.open(ns)
        bits = np.random.default_rng(2).integers(0, 256, (2, 2, 12, 4, 2, 9)).astype(np.uint8)  # layer kv block token head byte
        source = kvtier.Pool.from_tensors(ns, list(bits), "kv block token head byte")
        prefix = cache.prefix(range(BLOCKS * 4 + 1))
        self.store(cache, prefix, source, [7, 3, 9, 1, 0])
        # The same order of axes, lying by page.
        memory = np.zeros((12, 2, 2, 4, 2, 9), np.uint8)
        target = kvtier.Pool.from_tensors(ns, memory.transpose(1, 2, 0, 3, 4, 5), "layer kv block token head byte")
        self.assertEqual(self.load(cache, prefix, target, [0, 2, 4, 6, 8]), BLOCKS)
        np.testing.assert_array_equal(memory[[0, 2, 4, 6, 8]].transpose(1, 2, 0, 3, 4, 5), bits[:, :, [7, 3, 9, 1, 0]])

    def test_raw_pages_may_be_rows_with_gaps(self):
        ns = namespace(model="rows", layers=1, format="raw", raw_bytes=4 * 6 * 4)
        cache = self.open(ns)
        wide = np.arange(10 * 4 * 8, dtype=np.int32).reshape(10, 4, 8)
        source = kvtier.Pool.from_tensors(ns, [wide[:, :, :6]], "block token number")
        prefix = cache.prefix(range(5))
        self.store(cache, prefix, source, [9])
        plain = np.zeros((1, 4, 6), np.int32)
        self.assertEqual(self.load(cache, prefix, kvtier.Pool.from_tensors(ns, [plain], "block token number"), [0]), 1)
        np.testing.assert_array_equal(plain[0], wide[9, :, :6])

    def test_whatever_exports_dlpack_is_an_array(self):
        class Exported:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        ns = namespace(model="dlpack", layers=1)
        cache = self.open(ns)
        source = np.random.default_rng(1).random((2, 3, 4, 2, 8)).astype(np.float32)
        strided = Exported(source.transpose(0, 1, 3, 2, 4).copy().transpose(0, 1, 3, 2, 4))
        prefix = cache.prefix(range(5))
        self.store(cache, prefix, kvtier.Pool.from_tensors(ns, [strided], "kv block token head dim"), [2])
        target = np.zeros_like(source)
        self.assertEqual(self.load(cache, prefix, kvtier.Pool.from_tensors(ns, [Exported(target)], "kv block token head dim"), [1]), 1)
        np.testing.assert_array_equal(target[:, 1], source[:, 2])

    def test_tokens_and_pages_come_in_any_list_of_integers(self):
        ns = namespace(model="lists", layers=1)
        cache = self.open(ns)
        wanted = cache.prefix(list(range(9))).keys
        self.assertEqual(len(wanted), 2)
        for tokens in (tuple(range(9)), range(9), np.arange(9), np.arange(18)[::2] // 2, np.arange(9, dtype=np.int32),
                       np.arange(9, dtype=np.uint16), array.array("I", range(9)), memoryview(array.array("l", range(9)))):
            self.assertEqual(cache.prefix(tokens).keys, wanted)
        grown = cache.prefix()
        for token in range(9):
            grown.append([token])
        self.assertEqual(grown.keys, wanted)


if __name__ == "__main__":
    pages.main()
