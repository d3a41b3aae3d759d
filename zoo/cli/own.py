"""The commands that read their own words: check, new, matrix, import."""

from __future__ import annotations

import importlib

MODULES = {"import": "import_pretrained"}


def run(command: str, argv: list[str]) -> int:
    """Run a command, which is a module of that name unless Python keeps the name for itself."""
    module = importlib.import_module(f"zoo.cli.{MODULES.get(command, command)}")
    if "-h" in argv or "--help" in argv:
        print(module.USAGE)
        return 0
    code: int = module.run(argv)
    return code
