"""What scales that a calibration fixed would cost, beside those that the engine computes for each block: bits per
byte in NumPy, of the engine's own formats and of the same numbers under fixed scales."""
from numpy_llama import BLOCK_TOKENS, NumpyLlama, bits_of, np
from rounding import Calibration, Static, dynamic

FORMATS = ["fp8_e4m3", "int8", "int4"]
SCALE_BITS = 32  # an FP32 above each head's K or V of a block
BITS = {"fp8_e4m3": 8, "int8": 8, "int4": 4}
GROUP_BITS = {"fp8_e4m3": 0, "int8": 0.25, "int4": 0.25}


class Text:
    """Windows of token ids, and what the model says of them where K and V are exact."""

    def __init__(self, model, ids, sizes, context):
        self.model, self.windows = model, cut(ids, context)
        self.bytes = sum(sizes[token] for window in self.windows for token in window[1:])
        self.exact = [model.log_probabilities(window, dynamic("f32")) for window in self.windows]

    def compared(self, stored):
        """(bits per byte, Kullback-Leibler divergence from the exact distributions in thousandths of a nat a token). The first token
        of each window is not scored."""
        bits, divergence, rows = 0.0, 0.0, 0
        for ids, exact in zip(self.windows, self.exact):
            found = self.model.log_probabilities(ids, stored)
            bits += bits_of(found, ids).sum()
            divergence += float((np.exp(exact) * (exact - found)).sum(-1).astype(np.float64).sum())
            rows += len(ids)
        return bits / self.bytes, 1000 * divergence / rows


def cut(ids, context):
    return [ids[first:first + context] for first in range(0, len(ids) - 1, context)]


def calibrated(model, ids, context):
    """{"head": Calibration, "channel": Calibration}"""
    calibrations = {by: Calibration(by) for by in Calibration.AXES}

    def seen_by_all(layer, side, x):
        for calibration in calibrations.values():
            calibration(layer, side, x)
        return x

    for window in cut(ids, context):
        model.log_probabilities(window, seen_by_all)
    return calibrations


def measure(directory, calibration_ids, texts, sizes, context):
    """Rows {name, text, format, scales, bits_per_byte, divergence, bits_a_number, cut_share}. `texts` is {name: ids}; all is cut into
    windows of `context` tokens that do not overlap. Calibrated is on calibration_ids alone; sizes[token] is its bytes."""
    model, rows = NumpyLlama(directory), []
    calibrations = calibrated(model, calibration_ids, context)
    a_block = SCALE_BITS / (BLOCK_TOKENS * model.dim)
    for text, ids in texts.items():
        compared = Text(model, ids, sizes, context).compared

        def add(name, scales, stored, bits, text=text, compared=compared):
            bits_per_byte, divergence = compared(stored)
            share = stored.cut / stored.numbers if isinstance(stored, Static) else None
            rows.append({"name": f"{text}.{name}.{scales}", "text": text, "format": name, "scales": scales, "cut_share": share,
                         "bits_per_byte": float(bits_per_byte), "divergence": divergence, "bits_a_number": bits})

        add("f32", "none", dynamic("f32"), 32)
        for name in FORMATS:
            add(name, "block", dynamic(name), BITS[name] + GROUP_BITS[name] + a_block)
            for by, calibration in calibrations.items():
                add(name, f"static_{by}", Static(name, calibration), BITS[name])
    return rows


def apart(rows, text, engine_bits):
    """The largest relative difference to what `kvtier-engine score` found, {format: bits per byte}, with scales of blocks."""
    own = {row["format"]: row["bits_per_byte"] for row in rows if row["text"] == text and row["scales"] in ("none", "block")}
    return float(max(abs(own[name] / found - 1) for name, found in engine_bits.items()))
