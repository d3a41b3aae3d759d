"""The commands for parts of one's own: check, new, matrix."""

from __future__ import annotations

import importlib


def run(command: str, argv: list[str]) -> int:
    """Run check, new or matrix, each a module of that name."""
    module = importlib.import_module(f"zoo.cli.{command}")
    if "-h" in argv or "--help" in argv:
        print(module.USAGE)
        return 0
    code: int = module.run(argv)
    return code
