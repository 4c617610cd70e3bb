"""The command line of formats_bench.py, and where it finds what it reads."""
import argparse
import pathlib
import tempfile

from programs import Failed

HERE = pathlib.Path(__file__).resolve().parent
FORMATS = ["f32", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4"]
GPU_FORMATS = ["bf16", "fp8_e4m3", "fp8_e5m2"]
PARTS = ["bytes", "quality", "needles", "times", "serving", "static", "eviction"]
SHAPE_PARTS = ["bytes", "times"]  # what random weights have


def beside(*names):
    """A file or folder of the source tree, or of a packed folder, which has what its tests read in source/."""
    for root in (HERE.parent.parent, HERE.parent / "source"):
        if (root.joinpath(*names)).exists():
            return root.joinpath(*names)
    return HERE.parent.parent.joinpath(*names)


def parse(about):
    """Of the command line; `about` is the program's own description."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0], epilog="\n".join(about.splitlines()[1:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of kvtier-engine, kvtierd and kvtierctl")
    parser.add_argument("--model", default=str(beside("engine_adapter", "models", "docs-4m")))
    parser.add_argument("--random-weights", metavar="SHAPE", help="as kvtier-engine, in place of --model: bytes and times alone")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--part", action="append", choices=PARTS, help="may be given again; all that the model has if left out")
    parser.add_argument("--format", action="append", choices=FORMATS, help="may be given again; all that the device has if left out")
    parser.add_argument("--text-file", type=pathlib.Path, help="what is scored and searched (default: the model's heldout.txt)")
    parser.add_argument("--text-bytes", type=int, default=0, help="only so much of it")
    parser.add_argument("--context", type=int, default=8192, help="of quality and needles")
    parser.add_argument("--distance", type=int, action="append", help="of a needle from the end (default: 64, 256, 1024, 4096)")
    parser.add_argument("--prefix-tokens", type=int, action="append",
                        help="of a prompt (default: 1024, 4096, 8160; on a GPU 8192, 32768)")
    parser.add_argument("--chunk-tokens", type=int, action="append", help="rows of a step (default: 128, 512; on a GPU 2048, 8192)")
    parser.add_argument("--rounds", type=int, default=5, help="first tokens whose median counts")
    parser.add_argument("--serving-size", choices=["tiny", "small", "large"], default="small")
    parser.add_argument("--serving-sessions", type=int, default=48)
    parser.add_argument("--offline-context", type=int, default=2048, help="of static and eviction")
    parser.add_argument("--eviction-windows", type=int, help="of how many windows of it (default: all)")
    parser.add_argument("--dir", type=pathlib.Path, default=tempfile.gettempdir(), help="where the daemons' files are; a real disk for times")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all rows there, too")
    return parser.parse_args()


def completed(a):
    """Fills in what was left out."""
    gpu, a.bin, a.dir = a.device == "cuda", a.bin.resolve(), pathlib.Path(a.dir).resolve()
    a.part = a.part or (SHAPE_PARTS if a.random_weights else PARTS)
    # f32, which others are held against, comes first.
    a.format = sorted(set(a.format or (GPU_FORMATS if gpu else FORMATS)), key=FORMATS.index)
    a.distance = sorted(a.distance or [64, 256, 1024, 4096])
    a.prefix_tokens = a.prefix_tokens or ([8192, 32768] if gpu else [1024, 4096, 8160])
    a.chunk_tokens = a.chunk_tokens or ([2048, 8192] if gpu else [128, 512])
    if missing := [part for part in a.part if a.random_weights and part not in SHAPE_PARTS]:
        raise Failed(f"random weights have no {' and no '.join(missing)}: leave --random-weights out")
    if gpu and "times" in a.part and not a.random_weights:
        raise Failed("first tokens on a GPU are measured with --random-weights, such as llama-3.1-8b")
    if a.random_weights:
        return a
    file = a.text_file or pathlib.Path(a.model) / "heldout.txt"
    a.text = file.read_text()
    if a.text_bytes:
        a.text = a.text.encode()[:a.text_bytes].decode(errors="ignore")
    return a
