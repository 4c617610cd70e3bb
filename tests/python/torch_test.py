"""Tensors of torch as pools: of every type, and on a GPU where there is one. Skipped (77) where there is no torch."""

import sys
import unittest

try:
    import torch
except ImportError:
    print("skipped: no torch in this environment")
    sys.exit(77)

import kvtier
import pages
from pages import WAIT, namespace

DIMS = "kv block token head dim"
ON_GPU = kvtier.WITH_CUDA and torch.cuda.is_available()


class TorchTest(pages.CacheTest):
    def test_bfloat16_comes_back_equal(self):
        cache = self.open(namespace(model="bf16", format="bf16"))
        stored = [torch.randn(2, 6, 4, 2, 8, dtype=torch.bfloat16) for _ in range(2)]
        loaded = [torch.zeros(2, 6, 2, 4, 8, dtype=torch.bfloat16).transpose(2, 3) for _ in range(2)]  # lies head-major
        prefix = cache.prefix(torch.arange(25))
        self.store(cache, prefix, kvtier.Pool.from_tensors(cache.ns, stored, DIMS), torch.arange(6))
        pool = kvtier.Pool.from_tensors(cache.ns, loaded, DIMS)
        self.assertEqual(pool.device, "cpu")
        self.assertEqual(self.load(cache, prefix, pool, torch.arange(5, -1, -1)), 6)
        for mine, theirs in zip(loaded, stored):
            self.assertTrue(torch.equal(mine.flip(1), theirs))

    def test_fp8_pages_are_raw(self):
        cache = self.open(namespace(model="fp8", format="raw", raw_bytes=2 * 4 * 2 * 8, page_layout="FP8 E4M3"))
        stored = [torch.randn(2, 6, 4, 2, 8).to(torch.float8_e4m3fn) for _ in range(2)]
        loaded = [torch.zeros(2, 6, 4, 2, 8).to(torch.float8_e4m3fn) for _ in range(2)]
        self.store(cache, cache.prefix(range(25)), kvtier.Pool.from_tensors(cache.ns, stored, DIMS), range(6))
        self.assertEqual(self.load(cache, cache.prefix(range(25)), kvtier.Pool.from_tensors(cache.ns, loaded, DIMS), range(6)), 6)
        for mine, theirs in zip(loaded, stored):
            self.assertTrue(torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)))

    def test_tensors_that_require_gradients_are_pages_too(self):
        tensors = [torch.zeros(2, 6, 4, 2, 8, requires_grad=True) for _ in range(2)]
        self.assertEqual(kvtier.Pool.from_tensors(namespace(), tensors, DIMS).pages, 6)

    def test_what_is_no_memory_is_refused(self):
        for tensor, words in ((torch.zeros(2, 6, 4, 2, 8, device="meta"), "on the device meta"),
                              (torch.zeros(2, 6, 4, 2, 8).to_sparse(), "torch.sparse_coo"),
                              (torch.zeros(2, 6, 4, 2, 8, dtype=torch.int32), "tensor 0 is of int32")):
            with self.assertRaises(kvtier.InvalidError) as caught:
                kvtier.Pool.from_tensors(namespace(), [tensor] * 2, DIMS)
            self.assertIn(words, str(caught.exception))


@unittest.skipUnless(ON_GPU, "no GPU, or a library without CUDA")
class CudaTest(pages.CacheTest):
    LAYERS, BLOCKS = 8, 16  # with what a client has lent of each size, far less than the tier

    def setUp(self):
        super().setUp()
        self.client = kvtier.Client(self.daemon.socket, cuda_device=0, slot_wait=WAIT)
        self.addCleanup(self.client.close)
        self.client.wait_connected(WAIT)

    def tensors(self, make, shape):
        return [make(*shape, dtype=torch.bfloat16, device="cuda") for _ in range(self.LAYERS)]

    def check(self, model, dims, shape, **fields):
        cache = self.open(namespace(model=model, layers=self.LAYERS, kv_heads=8, head_dim_k=128, head_dim_v=128, block_tokens=16, **fields))
        stored, loaded = self.tensors(torch.randn, shape), self.tensors(torch.zeros, shape)
        prefix = cache.prefix(range(self.BLOCKS * 16 + 1))
        source, target = (kvtier.Pool.from_tensors(cache.ns, each, dims) for each in (stored, loaded))
        self.assertEqual(source.device, "cuda:0")
        self.store(cache, prefix, source, range(self.BLOCKS))
        stream = torch.cuda.Stream()
        with cache.lease(prefix, timeout=WAIT) as lease:
            self.assertEqual(lease.wait(WAIT), self.BLOCKS)
            load = lease.load(target, range(self.BLOCKS), stream)
            furthest = []
            for layer in range(self.LAYERS):
                load.wait_layer(layer, stream)
                with torch.cuda.stream(stream):  # nobody waits here: the stream does
                    furthest.append((loaded[layer].float() - stored[layer].float()).abs().amax())
            self.assertEqual(load.finish(), self.BLOCKS)
        return max(float(each) for each in furthest)

    def test_pages_on_a_gpu_come_back_in_every_order_of_axes(self):
        for dims, shape in ((DIMS, (2, self.BLOCKS, 16, 8, 128)), ("kv block head token dim", (2, self.BLOCKS, 8, 16, 128)),
                            ("block kv token head dim", (self.BLOCKS, 2, 16, 8, 128))):
            with self.subTest(dims):
                self.assertEqual(self.check(dims, dims, shape, format="bf16"), 0)
                self.assertLess(self.check("fp8 " + dims, dims, shape, format="fp8_e4m3"), 0.3)

    def test_a_pool_in_the_other_memory_is_refused(self):
        cache = self.open(namespace(model="where"))
        pool = kvtier.Pool.from_tensors(cache.ns, [torch.zeros(2, 6, 4, 2, 8) for _ in range(2)], DIMS)
        with cache.lease(range(9), timeout=WAIT) as lease, self.assertRaises(kvtier.InvalidError) as caught:
            lease.load(pool, [])
        self.assertIn("in host memory", str(caught.exception))

    def test_whatever_exports_dlpack_on_a_gpu_is_an_array(self):
        class Exported:
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **options):
                return self.tensor.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()
        tensors = [Exported(torch.zeros(2, 6, 4, 2, 8, device="cuda")) for _ in range(2)]
        self.assertEqual(kvtier.Pool.from_tensors(namespace(), tensors, DIMS).device, "cuda:0")


if __name__ == "__main__":
    pages.main()
