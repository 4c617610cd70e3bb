#!/usr/bin/env python3
"""What speculation gains: answers to questions about a document and continuations of code, with it and without.

  bench/serve/speculation_bench.py --engine build/release/bin/kvtier-engine --model engine_adapter/models/docs-4m --json

Each prompt is answered alone, --repeat times; the best time of the tokens behind the first counts. `.tokens_per_s` with
speculation stands beside that without. Exit status 1 where an answer with speculation is another one than without.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = ["scheduler/prefix/prefix_fill.cc", "scheduler/steps/step_chooser.cc", "model/llama.cc", "server/answer_text.cc"]


def prompts():
    document = (ROOT / "scripts/demo-document.txt").read_text()[:6000]
    questions = [line for line in (ROOT / "scripts/demo-questions.txt").read_text().splitlines() if line.strip()]
    code = [(ROOT / "engine_adapter/reference" / source).read_text()[:5000] for source in SOURCES]
    return {"documents": [f"{document}\n\nQuestion: {question}\nAnswer:" for question in questions[:4]], "code": code}


def answered(arguments, prompt, options):
    """(tokens, seconds behind the first one, proposed, accepted) of the quickest run."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        done = subprocess.run(
            [arguments.engine, "generate", "--no-cache", "--model", arguments.model, "--prompt-file", file.name, "--json",
             "--max-tokens", str(arguments.tokens), "--repeat", str(arguments.repeat), "--seed", "1", *options],
            capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    runs = json.loads(done.stdout)["runs"]
    best = min(runs, key=lambda run: run["total_ms"] - run["first_token_ms"])
    return best["tokens"], (best["total_ms"] - best["first_token_ms"]) / 1000, best["proposed_tokens"], best["accepted_tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True, help="kvtier-engine")
    parser.add_argument("--model", required=True)
    parser.add_argument("--speculate", action="append", help="as kvtier-engine; may be given again (ngram:4 and ngram)")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--counts", action="store_true", help="leave out what depends on the machine: times")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows, different = [], 0

    def add(name, value, unit, limit=None):
        rows.append({"name": name, "value": value, "unit": unit, "limit": limit, "ratio": value / limit if limit else None})

    for subject, texts in prompts().items():
        for choice, options in (("greedy", []), ("sampled", ["--temperature", "0.8"])):
            name = f"{subject}.{choice}"
            plain = [answered(arguments, text, options) for text in texts]
            behind_first = sum(len(each[0]) - 1 for each in plain)
            rate = behind_first / sum(each[1] for each in plain)
            if not arguments.counts:
                add(f"{name}.plain.tokens_per_s", rate, "1/s")
            for speculate in arguments.speculate or ["ngram:4", "ngram"]:
                fast = [answered(arguments, text, [*options, "--speculate", speculate]) for text in texts]
                different += sum(a[0] != b[0] for a, b in zip(plain, fast))
                proposed, accepted = sum(each[2] for each in fast), sum(each[3] for each in fast)
                if not arguments.counts:
                    add(f"{name}.{speculate}.tokens_per_s", behind_first / sum(each[1] for each in fast), "1/s", rate)
                add(f"{name}.{speculate}.accepted", 100 * accepted / max(proposed, 1), "%")
                add(f"{name}.{speculate}.tokens_a_step", behind_first / (behind_first - accepted), "tokens")
    add("answers_different", different, "count")
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['name']:42} {row['value']:10.2f} {row['unit']:7}" + (f" {row['ratio']:.2f} times" if row["ratio"] else ""))
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
