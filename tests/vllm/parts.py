"""Modules of engines' adapters that need neither the engine nor torch, without the packages that they are part of."""

import importlib
import pathlib
import sys
import types

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def part(name, adapter="vllm"):
    """Such a module: "planner", say. `adapter` is its folder in engine_adapter/."""
    for package, folder in (("adapters", SOURCE / "engine_adapter"), (f"adapters.{adapter}", SOURCE / "engine_adapter" / adapter)):
        if package not in sys.modules:
            module = types.ModuleType(package)
            module.__path__ = [str(folder)]
            sys.modules[package] = module
    return importlib.import_module(f"adapters.{adapter}.{name}")
