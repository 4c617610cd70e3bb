"""Which weights these are, by what vLLM and SGLang alike call a model's configuration."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_READ = 1 << 22
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
_READERS_MAX = 8  # at once: hashing is slower than a page cache, and does not hold Python's lock
_State = tuple[tuple[str, int, int], ...]


def folder_digest(folder: str) -> str:
    """SHA-256 of the weights and configurations in a folder: names, sizes and contents. Read once, and again when a
    file has another size or time."""
    files = sorted(path for path in pathlib.Path(folder).iterdir() if path.suffix in _SUFFIXES and path.is_file())
    state = tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return _digest_of(os.path.realpath(folder), state)


@functools.lru_cache(maxsize=1024)
def _digest_of(folder: str, state: _State) -> str:
    digest = hashlib.sha256()
    with ThreadPoolExecutor(min(_READERS_MAX, os.cpu_count() or 1)) as readers:
        contents = readers.map(_file_digest, [os.path.join(folder, name) for name, _, _ in state])
        for (name, size, _), content in zip(state, contents):
            digest.update(f"{name}\0{size}\0{content}\0".encode())
    return digest.hexdigest()


def _file_digest(path: str) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_READ)
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(buffer):
            digest.update(memoryview(buffer)[:read])
    return digest.hexdigest()


def revision_of(model_config: Any) -> str:
    """The commit that the weights were fetched at, or the digest of a local folder or file."""
    if commit := getattr(model_config.hf_config, "_commit_hash", None):
        return str(commit)
    place = pathlib.Path(model_config.model)
    if place.is_file():
        return _file_digest(str(place))
    if not place.is_dir():
        return str(model_config.revision or "unknown")
    if snapshot := re.search(r"/snapshots/([0-9a-f]{40})/?$", str(place.resolve())):
        return snapshot.group(1)
    return folder_digest(str(place))
