#!/usr/bin/env python3
"""Compares the engine's token ids with those of the `tokenizers` and `sentencepiece` packages.

    compare.py --engine build/release/bin/kvtier-engine --work DIR [--lines 10000]
    compare.py --golden tests/data/tokenizers --work DIR

The first trains a tokenizer of each family from a text of its own making, encodes the text with both, and
fails where they differ. Of a unigram model's segmentations with the very same probability (the same pieces in
another order) versions of the library choose differently; these are counted apart. The second writes small tokenizers with the ids of a few lines, for the tests.
Exit status 77 where the text or the packages cannot be had.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

SKIPPED = 77


def ids_of_engine(engine, folder, lines_file):
    done = subprocess.run([engine, "tokenize", "--model", folder, "--text-file", lines_file, "--lines"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def references(families, text, work, size):
    """(name, folder with the tokenizer's file, ids of a text) for each family."""
    import sentencepiece

    for name, make in families.JSON_FAMILIES.items():
        folder = work / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = make(text, size)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        yield name, folder, lambda one, t=tokenizer: t.encode(one, add_special_tokens=False).ids
    for name, options in families.SENTENCEPIECE_FAMILIES.items():
        folder = work / name
        folder.mkdir(parents=True, exist_ok=True)
        model = families.sentencepiece_model(text, size, options)
        (folder / "tokenizer.model").write_bytes(model)
        yield name, folder, sentencepiece.SentencePieceProcessor(model_proto=model).encode


def is_plain(line, name):
    """SentencePiece itself finds no <s> in a text; the engine does, as transformers does."""
    return not name.startswith("sentencepiece") or not any(token in line for token in ("<s>", "</s>"))


def compare(args, families, text):
    wrong = 0
    for name, folder, encode in references(families, text, args.work / "trained", 8000):
        chosen = [line for line in text if is_plain(line, name)]
        lines_file = args.work / "lines.jsonl"
        lines_file.write_text("".join(json.dumps(line) + "\n" for line in chosen))
        found = ids_of_engine(args.engine, folder, lines_file)
        assert len(found) == len(chosen)
        different = [i for i, line in enumerate(chosen) if found[i] != encode(line)]
        ties = [i for i in different if name == "sentencepiece-unigram" and sorted(found[i]) == sorted(encode(chosen[i]))]
        different = sorted(set(different) - set(ties))
        print(f"{name}: {len(chosen)} lines, {sum(map(len, found))} ids, {len(different)} lines differ"
              + (f", {len(ties)} have the same pieces in another order" if ties else ""), flush=True)
        for i in different[:3]:
            print(f"  {chosen[i]!r}\n  engine    {found[i]}\n  reference {encode(chosen[i])}")
        wrong += len(different)
    return 1 if wrong else 0


def golden(args, families, text):
    import sentencepiece
    import tokenizers

    families.SENTENCEPIECE_FAMILIES["sentencepiece-unigram"]["normalization_rule_name"] = "identity"  # smaller
    for name, folder, encode in references(families, text, args.golden, 900):
        chosen = [line for line in text if is_plain(line, name) and len(line) < 160][:120]
        cases = ",\n".join(json.dumps({"text": line, "ids": encode(line)}) for line in chosen)
        made = f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}"
        (folder / "cases.json").write_text('{"made_with": "%s", "cases": [\n%s\n]}\n' % (made, cases))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=10000)
    args = parser.parse_args()
    try:
        import corpus
        import families

        text = corpus.lines(args.work.resolve() / "text", args.lines)
    except (ImportError, OSError) as error:
        print(f"skipped: {error}")
        return SKIPPED
    return golden(args, families, text) if args.golden else compare(args, families, text)


if __name__ == "__main__":
    sys.exit(main())
