"""What a storage format is worth to a server whose documents do not fit into its own pages: kvtier-serve-bench by format."""
import json

NAMES = {"requests_per_s": ("saturated.requests_per_s", "1/s"), "first_token_p50": ("first_token_p50", "ms"),
         "inter_token_p50": ("inter_token_p50", "ms")}


def measure(programs, work, storage, size, sessions):
    """{name: (value, unit)} of questions about documents, with the cache."""
    said = programs.run("kvtier-serve-bench", *programs.model, "--device", programs.device, "--storage-format", storage, "--dir", work,
                        "--workload", "document_qa", "--size", size, "--sessions", sessions, "--no-own-pages", "--search-seconds", 0,
                        "--trial-seconds", 1, "--json")
    rows = {row["name"]: row for row in json.loads(said[said.index("[\n"):])}
    found = {name: rows[f"document_qa.with_cache.{row}"] for name, (row, _) in NAMES.items()}
    return {name: (row["value"], row["unit"]) for name, row in found.items()}
