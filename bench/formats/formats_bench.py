#!/usr/bin/env python3
"""Quality, size and first tokens of the storage formats, in one table.

  bench/formats/formats_bench.py --bin build/release/bin --json formats.json
      All of it for the bundled model on the CPU. `static` and `eviction` want NumPy and take minutes.
  bench/formats/formats_bench.py --bin build/release/bin --part bytes --part quality
      Without what depends on the machine.
  formats/formats_bench.py --bin bin --device cuda --random-weights llama-3.1-8b --json formats-8b.json
      Bytes and first tokens of a large shape on a GPU, from a packed folder (scripts/gpu-host.sh pack).

Parts: `bytes` (kvtier-engine plan), `quality` (kvtier-engine score over held-out text), `needles` (lines of a long text that are asked
for, read back from the cache), `times` (first tokens from each tier, by prefix and rows of a step), `serving` (kvtier-serve-bench),
`static` (calibrated scales in place of those of blocks) and `eviction` (H2O in place of keeping all), both offline in NumPy.

Exit status: 0 measured; 1 it could not be measured; 2 usage.
"""
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import arguments  # noqa: E402
import first_token  # noqa: E402
import needles  # noqa: E402
import serving  # noqa: E402
import table  # noqa: E402
from arguments import beside  # noqa: E402
from programs import Failed, Programs  # noqa: E402

GIB = 1 << 30


class Rows(list):
    """What --json prints: name, value, unit, and what the value is held against."""

    def add(self, name, value, unit, limit=None):
        self.append({"name": name, "value": value, "unit": unit, "limit": limit, "ratio": value / limit if limit else None})
        print(f"{name}: {value:.6g} {unit}", file=sys.stderr)

    def value(self, name):
        return next((row["value"] for row in self if row["name"] == name), None)


def measure_bytes(a, programs, rows):
    plan = programs.engine("plan", *[word for name in a.format for word in ("--storage-format", name)])
    for found in plan["formats"]:
        tokens = plan["block_tokens"]
        rows.add(f"{found['format']}.bytes_a_token", found["block_bytes"] / tokens, "bytes")
        rows.add(f"{found['format']}.tokens_a_gib", GIB // found["block_bytes"] * tokens, "tokens")


def score(programs, text, context, formats):
    """{format: bits per byte}"""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        options = [word for name in formats for word in ("--storage-format", name)]
        said = programs.engine("score", "--device", programs.device, "--text-file", file.name, "--context", context, *options)
    return {found["format"]: found["bits_per_byte"] for found in said["formats"]}


def measure_quality(a, programs, rows):
    scores = score(programs, a.text, a.context, a.format)
    for name, bits in scores.items():
        rows.add(f"{name}.bits_per_byte", bits, "bits a byte", scores.get("f32"))


def measure_needles(a, programs, rows):
    haystacks, exact = {distance: needles.Haystack(programs, a.text, a.context, distance) for distance in a.distance}, None
    for name in a.format:
        with tempfile.TemporaryDirectory(prefix="formats-", dir=a.dir) as work:
            found = needles.measure(programs, pathlib.Path(work), haystacks, name)
        exact = found if name == "f32" else exact
        for which, distances in [*((distance, [distance]) for distance in a.distance), ("all", a.distance)]:
            row = f"needles.{which}"
            rows.add(f"{name}.{row}.right", 100 * found.right(distances), "%", rows.value(f"f32.{row}.right"))
            rows.add(f"{name}.{row}.bits", found.bits_of(distances), "bits", rows.value(f"f32.{row}.bits"))
            if exact:
                rows.add(f"{name}.{row}.as_f32", 100 * found.share(distances, exact.answers), "%")


def measure_times(a, programs, rows):
    for name in a.format:
        for prefix in a.prefix_tokens:
            for chunk in a.chunk_tokens:
                with tempfile.TemporaryDirectory(prefix="formats-", dir=a.dir) as work:
                    if a.device == "cpu":
                        found = first_token.on_cpu(programs, pathlib.Path(work), name, prefix, chunk, a.rounds)
                    else:
                        found = first_token.on_gpu(programs, work, a.random_weights, name, prefix, chunk, a.rounds)
                for source, milliseconds in found.items():
                    rows.add(f"{name}.first_token.{prefix}.{chunk}.{source}", milliseconds, "ms",
                             None if source == "computed" else found["computed"])


def measure_serving(a, programs, rows):
    for name in a.format:
        with tempfile.TemporaryDirectory(prefix="formats-", dir=a.dir) as work:
            for what, (value, unit) in serving.measure(programs, work, name, a.serving_size, a.serving_sessions).items():
                rows.add(f"{name}.serving.{what}", value, unit)


def token_sizes(a):
    """Bytes of every token of a byte-level vocabulary, which writes each byte as one character."""
    vocabulary = json.loads((pathlib.Path(a.model) / "tokenizer.json").read_text())["model"]["vocab"]
    return {token: len(text) for text, token in vocabulary.items()}


def measure_static(a, programs, rows):
    import static_scales
    texts = {"heldout": programs.tokenize(a.text)}
    cases = beside("tests", "data", "tokenizer-cases.json")
    if cases.exists():
        texts["unlike"] = [token for case in json.loads(cases.read_text())["cases"] for token in case["ids"]]
    calibration = programs.tokenize(beside("scripts", "demo-document.txt").read_text())
    found = static_scales.measure(a.model, calibration, texts, token_sizes(a), a.offline_context)
    exact = {row["text"]: row["bits_per_byte"] for row in found if row["format"] == "f32"}
    for row in found:
        name = f"static.{row['name']}"
        rows.add(f"{name}.bits_per_byte", row["bits_per_byte"], "bits a byte", exact[row["text"]])
        rows.add(f"{name}.divergence", row["divergence"], "nat / 1000")
        rows.add(f"{name}.bits_a_number", row["bits_a_number"], "bits")
        if row["cut_share"] is not None:
            rows.add(f"{name}.cut", 1e6 * row["cut_share"], "in a million")
    engine = score(programs, a.text, a.offline_context, ["f32", *static_scales.FORMATS])
    rows.add("static.numpy_beside_engine", 100 * static_scales.apart(found, "heldout", engine), "%")


def measure_eviction(a, programs, rows):
    import heavy_hitters
    ids = programs.tokenize(a.text)
    for row in heavy_hitters.measure(a.model, ids, token_sizes(a), a.offline_context, windows=a.eviction_windows):
        rows.add(f"eviction.{row['name']}", row["value"], row["unit"])


def main():
    a, rows = arguments.parse(__doc__), Rows()
    try:
        a = arguments.completed(a)
        model = ["--random-weights", a.random_weights] if a.random_weights else ["--model", a.model]
        programs = Programs(a.bin, model, a.device)
        for part in arguments.PARTS:
            if part in a.part:
                globals()[f"measure_{part}"](a, programs, rows)
    except (Failed, OSError) as failed:
        sys.exit(f"formats_bench: {failed}")
    finally:
        if a.json and rows:
            a.json.write_text(json.dumps(rows, indent=1) + "\n")
    tables = [table.of_formats(rows, a.format), table.of_times(rows, a.format), table.of_static(rows), table.of_eviction(rows)]
    print("\n\n".join(filter(None, tables)))


if __name__ == "__main__":
    main()
