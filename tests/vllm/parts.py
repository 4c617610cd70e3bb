"""The connector's modules that need neither vLLM nor torch, without the package that they are part of."""

import importlib
import pathlib
import sys
import types

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def part(name):
    """Such a module: "planner", say."""
    if "connector" not in sys.modules:
        package = types.ModuleType("connector")
        package.__path__ = [str(SOURCE / "engine_adapter" / "vllm")]
        sys.modules["connector"] = package
    return importlib.import_module(f"connector.{name}")
