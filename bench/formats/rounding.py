"""What a number becomes in a storage format: with the scales that the engine computes for each block, as docs/format.md has
them, and with scales that were fixed beforehand. Arrays are float32, [kv_heads][blocks][16 tokens][dim]."""
import numpy as np

FP8 = {"fp8_e4m3": (3, -6, 448.0), "fp8_e5m2": (2, -14, 57344.0)}  # mantissa bits, least exponent, largest
LOW = {"int8": 128, "int4": 8}                                     # integers are -LOW to LOW - 1
GROUP = 32                                                         # numbers that share a scale


def to_fp8(x, name):
    """The nearest number of an FP8 format, of two the even one; the largest where x is beyond it."""
    mantissa, least, largest = FP8[name]
    _, exponent = np.frexp(x)
    step = np.ldexp(np.float32(1), np.maximum(exponent - 1, least) - mantissa)
    return np.clip(np.rint(x / step) * step, -largest, largest).astype(np.float32)


def to_fp8_away(x, name="fp8_e4m3"):
    """The same, away from zero where x is between two."""
    mantissa, least, largest = FP8[name]
    _, exponent = np.frexp(x)
    step = np.ldexp(np.float32(1), np.maximum(exponent - 1, least) - mantissa)
    return np.clip(np.copysign(np.ceil(np.abs(x) / step), x) * step, -largest, largest).astype(np.float32)


def inverse(scale):
    return np.where(scale == 0, np.float32(0), np.float32(1) / np.where(scale == 0, np.float32(1), scale))


def dynamic_fp8(x, name):
    largest = np.abs(x).max((2, 3), keepdims=True)
    scale = np.where(largest == 0, np.float32(1), largest / np.float32(FP8[name][2]))
    return to_fp8(x * inverse(scale), name) * scale


def grouped(x, side):
    """x with the numbers of a group in the last axis: of K two channels of 16 tokens, of V 32 channels of a token."""
    heads, blocks, tokens, dim = x.shape
    if side == "k":
        pairs = x.reshape(heads, blocks, tokens, dim // 2, 2).transpose(0, 1, 3, 2, 4)
        return pairs.reshape(heads, blocks, -1, GROUP)
    return x.reshape(heads, blocks, -1, GROUP)


def ungrouped(groups, side, shape):
    heads, blocks, tokens, dim = shape
    if side == "k":
        return groups.reshape(heads, blocks, dim // 2, tokens, 2).transpose(0, 1, 3, 2, 4).reshape(shape)
    return groups.reshape(shape)


def dynamic_integers(x, name, side):
    low = LOW[name]
    groups = grouped(x, side)
    most, least = np.maximum(groups.max(-1), 0), np.maximum((-groups).max(-1), 0)
    wanted = np.where(most > least, -most, least)
    largest = np.abs(x).max((2, 3))[..., None]
    unit = np.where(largest == 0, np.float32(1), largest / np.float32(448 * low))
    scaled = wanted / (unit * low)
    scale = ((to_fp8_away(scaled) if name == "int8" else to_fp8(scaled, "fp8_e4m3")) * unit)[..., None]
    integers = np.clip(np.rint(groups * inverse(scale)), -low, low - 1)
    return ungrouped((integers * scale).astype(np.float32), side, x.shape)


def dynamic(name):
    """stored() of NumpyLlama.bits as the engine's format `name` has it; exact for "f32"."""
    if name == "f32":
        return lambda layer, side, x: x
    if name in FP8:
        return lambda layer, side, x: dynamic_fp8(x, name)
    return lambda layer, side, x: dynamic_integers(x, name, side)


class Calibration:
    """The largest magnitudes of K and V over a text, in each layer and head (`by` "head") or channel of one ("channel")."""

    AXES = {"head": (1, 2, 3), "channel": (1, 2)}

    def __init__(self, by):
        self.by, self.largest = by, {}

    def __call__(self, layer, side, x):
        found = np.abs(x).max(self.AXES[self.by], keepdims=True)
        self.largest[layer, side] = np.maximum(found, self.largest.get((layer, side), np.float32(0)))


class Static:
    """stored() with scales that a calibration fixed. What is beyond what that saw is cut off, and counted."""

    def __init__(self, name, calibration):
        self.name, self.calibration, self.cut, self.numbers = name, calibration, 0, 0

    def __call__(self, layer, side, x):
        largest = self.calibration.largest[layer, side]
        self.cut += int((np.abs(x) > largest).sum())
        self.numbers += x.size
        if self.name in FP8:
            scale = largest / np.float32(FP8[self.name][2])
            return to_fp8(x * inverse(scale), self.name) * scale
        low = LOW[self.name]
        scale = largest / np.float32(low - 1)
        return (np.clip(np.rint(x * inverse(scale)), -low, low - 1) * scale).astype(np.float32)
